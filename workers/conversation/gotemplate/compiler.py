"""From a tree to closures: each node becomes a function, so that rendering looks nothing up twice.

A statement returns None, or the word of a `break` or `continue` that is on its way to its range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .errors import Fault, GoTemplateError
from .formatting import shown
from .functions import FUNCTIONS
from .nodes import (
    Action,
    Block,
    Branch,
    Call,
    Chain,
    Command,
    Constant,
    Dot,
    Field,
    Leave,
    Nil,
    Operand,
    Pipeline,
    Statement,
    Text,
    Variable,
)
from .nodes import Function as FunctionName
from .running import Run
from .values import LISTS, NO_VALUE, Map, Struct, methods_of, type_name

Value = Callable[[Run, Any], Any]
"""Evaluates an operand; the second argument is dot."""
Step = Callable[[Run, Any], str | None]
"""Does a statement; the second argument is dot."""


class Compiler:
    """Makes the templates of one source into steps, by name."""

    def __init__(self, templates: Mapping[str, Block]) -> None:
        self.steps: dict[str, Step] = {}
        for name, block in templates.items():
            self.steps[name] = self._block(block)

    # --- statements

    def _block(self, block: Block) -> Step:
        steps = tuple(self._statement(statement) for statement in block.statements)
        count = len(steps) or 1
        if len(steps) == 1:
            only = steps[0]

            def do_one(run: Run, dot: Any) -> str | None:
                run.steps -= 1
                if run.steps < 0:
                    run.take(0)
                return only(run, dot)

            return do_one

        def do(run: Run, dot: Any) -> str | None:
            run.steps -= count
            if run.steps < 0:
                run.take(0)
            for step in steps:
                word = step(run, dot)
                if word is not None:
                    return word
            return None

        return do

    def _statement(self, statement: Statement) -> Step:
        match statement:
            case Text():
                return self._text(statement)
            case Action(pipeline):
                return self._action(pipeline)
            case Branch(word):
                return self._range(statement) if word == "range" else self._if(statement)
            case Call():
                return self._call(statement)
            case Leave(word):
                return lambda run, dot: word

    def _text(self, piece: Text) -> Step:
        line, text = piece.line, piece.text

        def write(run: Run, dot: Any) -> None:
            try:
                run.write(text)
            except Fault as fault:
                raise GoTemplateError(line, str(fault)) from None

        return write

    def _action(self, pipeline: Pipeline) -> Step:
        evaluate = self._pipeline(pipeline)
        line = pipeline.line
        silent = bool(pipeline.variables)

        def act(run: Run, dot: Any) -> None:
            try:
                value = evaluate(run, dot)
                if not silent:
                    run.write(value if type(value) is str else shown(run, value))
            except Fault as fault:
                raise GoTemplateError(line, str(fault)) from None

        return act

    def _if(self, branch: Branch) -> Step:
        parts = [(self._pipeline(pipeline), self._block(body)) for pipeline, body in branch.parts]
        line = branch.parts[0][0].line
        otherwise = self._block(branch.otherwise) if branch.otherwise else None
        sets_dot = branch.word == "with"

        def choose(run: Run, dot: Any) -> str | None:
            before = len(run.names)
            run.enter(line)
            try:
                for evaluate, body in parts:
                    run.steps -= 1
                    value = evaluate(run, dot)
                    if value:
                        return body(run, value if sets_dot else dot)
                return otherwise(run, dot) if otherwise else None
            finally:
                run.depth -= 1
                del run.names[before:], run.values[before:]

        return choose

    def _range(self, branch: Branch) -> Step:
        ((pipeline, block),) = branch.parts
        line, variables = pipeline.line, pipeline.variables
        evaluate, body = self._pipeline(pipeline), self._block(block)
        otherwise = self._block(branch.otherwise) if branch.otherwise else None
        keep = _keeper(variables, pipeline.assigns)

        def repeat(run: Run, dot: Any) -> str | None:
            before = len(run.names)
            run.enter(line)
            try:
                pairs = _pairs(run, evaluate(run, dot), len(variables))
                mark = len(run.names)
                went = False
                for index, element in pairs:
                    went = True
                    keep(run, mark, index, element)
                    run.steps -= 1
                    word = body(run, element)
                    del run.names[mark:], run.values[mark:]
                    if word == "break":
                        break
                if not went and otherwise:
                    return otherwise(run, dot)
                return None
            except Fault as fault:
                raise GoTemplateError(line, str(fault)) from None
            finally:
                run.depth -= 1
                del run.names[before:], run.values[before:]

        return repeat

    def _call(self, call: Call) -> Step:
        evaluate = self._pipeline(call.pipeline) if call.pipeline else None
        line, name, steps = call.line, call.name, self.steps

        def render(run: Run, dot: Any) -> None:
            step = steps.get(name)
            if step is None:
                raise GoTemplateError(line, f"there is no template {name[:40]!r}")
            value = evaluate(run, dot) if evaluate else NO_VALUE
            run.enter(line)
            names, values = run.names, run.values
            run.names, run.values = ["$"], [value]
            step(run, value)
            run.names, run.values = names, values
            run.depth -= 1

        return render

    # --- values

    def _pipeline(self, pipeline: Pipeline) -> Value:
        first, *others = (self._command(c, piped=i > 0) for i, c in enumerate(pipeline.commands))
        line, variables, assigns = pipeline.line, pipeline.variables, pipeline.assigns
        if not others and not variables:

            def simple(run: Run, dot: Any) -> Any:
                try:
                    value = first(run, dot, None)
                except Fault as fault:
                    raise GoTemplateError(line, str(fault)) from None
                return NO_VALUE if value is None else value

            return simple

        def evaluate(run: Run, dot: Any) -> Any:
            try:
                value = first(run, dot, None)
                if value is None:
                    value = NO_VALUE
                for command in others:
                    value = command(run, dot, value)
                    if value is None:
                        value = NO_VALUE
                for name in variables:
                    if assigns:
                        run.values[run.place(name)] = value
                    else:
                        run.declare(name, value)
            except Fault as fault:
                raise GoTemplateError(line, str(fault)) from None
            return value

        return evaluate

    def _command(self, command: Command, *, piped: bool) -> Callable[[Run, Any, Any], Any]:
        """Evaluates a command; the third argument is the value before it, if it is `piped`."""
        operand, arguments = command.operand, command.arguments
        if isinstance(operand, FunctionName):
            return self._function(command, piped=piped)
        if isinstance(operand, Nil):
            return _failing("nil alone is no value")
        takes = bool(arguments) or piped
        if takes and isinstance(operand, (Dot, Constant, Pipeline)):
            return _failing("arguments follow what is no function")
        if takes and isinstance(operand, Variable) and not operand.fields:
            return _failing(f"arguments follow {operand.name[:40]}, which is no function")
        evaluate = self._operand(operand, takes=takes)
        return lambda run, dot, final: evaluate(run, dot)

    def _function(self, command: Command, *, piped: bool) -> Callable[[Run, Any, Any], Any]:
        assert isinstance(command.operand, FunctionName)
        name = command.operand.name
        function = FUNCTIONS[name]
        arguments = [self._operand(argument) for argument in command.arguments]
        count = len(arguments) + piped
        if not function.takes(count):
            return _failing(f"{name} does not take {count} values")
        if name in ("and", "or"):
            return _short_circuit(arguments, name == "or", piped=piped)
        return _application(name, function.call, arguments, command.line, piped=piped)

    def _operand(self, operand: Operand, *, takes: bool = False) -> Value:
        """Evaluates an operand. `takes`: arguments follow it, which no field can use."""
        match operand:
            case Dot():
                return lambda run, dot: dot
            case Nil():
                return lambda run, dot: NO_VALUE
            case Constant(value):
                return lambda run, dot: value
            case Field(names):
                return _fields(names, takes)
            case Variable(name, ()):
                return _variable(name)
            case Variable(name, fields):
                return _follow(_variable(name), fields, takes)
            case Chain(of, fields):
                return _follow(self._operand(of), fields, takes)
            case FunctionName():
                command = self._function(Command(0, operand, ()), piped=False)
                return lambda run, dot: command(run, dot, None)
            case Pipeline():
                return self._pipeline(operand)


def _failing(reason: str) -> Callable[[Run, Any, Any], Any]:
    """What is wrong only where it is reached, as in Go."""

    def fail(run: Run, dot: Any, final: Any) -> Any:
        raise Fault(reason)

    return fail


def _application(
    name: str,
    call: Callable[[Run, list[Any]], Any],
    arguments: list[Value],
    line: int,
    *,
    piped: bool,
) -> Callable[[Run, Any, Any], Any]:
    """Calls a function with its arguments. One and two have closures of their own, for speed."""
    count = len(arguments) + piped

    def one(run: Run, dot: Any, final: Any) -> Any:
        run.steps -= 1
        try:
            return call(run, [first(run, dot)])
        except Fault as fault:
            raise GoTemplateError(line, f"{name}: {fault}") from None

    def two(run: Run, dot: Any, final: Any) -> Any:
        run.steps -= 2
        try:
            return call(run, [first(run, dot), second(run, dot)])
        except Fault as fault:
            raise GoTemplateError(line, f"{name}: {fault}") from None

    def many(run: Run, dot: Any, final: Any) -> Any:
        try:
            run.take(count)
            values = [argument(run, dot) for argument in arguments]
            if piped:
                values.append(final)
            return call(run, values)
        except Fault as fault:
            raise GoTemplateError(line, f"{name}: {fault}") from None

    if not piped and count == 1:
        (first,) = arguments
        return one
    if not piped and count == 2:
        first, second = arguments
        return two
    return many


def _short_circuit(
    arguments: list[Value], wanted: bool, *, piped: bool
) -> Callable[[Run, Any, Any], Any]:
    """`and`, `or`: the first value that decides, else the last."""

    def decide(run: Run, dot: Any, final: Any) -> Any:
        value: Any = NO_VALUE
        for argument in arguments:
            run.take(1)
            value = argument(run, dot)
            if bool(value) is wanted:
                return value
        return final if piped else value

    return decide


def _variable(name: str) -> Value:
    def look_up(run: Run, dot: Any) -> Any:
        return run.values[run.place(name)]

    return look_up


def _fields(names: tuple[str, ...], takes: bool) -> Value:
    name, *others = names
    if others:
        return _follow(lambda run, dot: dot, names, takes)
    return lambda run, dot: field_of(dot, name, takes)


def _follow(of: Value, names: tuple[str, ...], takes: bool) -> Value:
    last = len(names) - 1

    def follow(run: Run, dot: Any) -> Any:
        run.take(last)
        value = of(run, dot)
        for place, name in enumerate(names):
            value = field_of(value, name, takes and place == last)
        return value

    return follow


def field_of(value: Any, name: str, takes: bool = False) -> Any:
    """A field, an entry, or what a method returns. Raises `Fault`."""
    if not takes:  # the usual cases first
        if isinstance(value, Struct):
            found = value.fields.get(name, NO_VALUE)
            if found is not NO_VALUE:
                return found
        elif type(value) is dict:
            return value.get(name)
    if value is NO_VALUE:
        return NO_VALUE
    method = methods_of(value).get(name)
    if method:
        if takes:
            raise Fault(f"{name[:40]} takes no arguments")
        return method(value)
    if isinstance(value, Struct):
        if name not in value.fields:
            raise Fault(f"{type_name(value)} has no field {name[:40]}")
        found = value.fields[name]
    elif isinstance(value, dict):
        found = value.get(name, NO_VALUE)
        if found is NO_VALUE:
            found = value.zero() if isinstance(value, Map) else None
    elif value is None:
        raise Fault(f"{name[:40]} is wanted of nil")
    else:
        raise Fault(f"{type_name(value)} has no field {name[:40]}")
    if takes:
        raise Fault(f"{name[:40]} is no function and takes no arguments")
    return found


def _keeper(variables: tuple[str, ...], assigns: bool) -> Callable[[Run, int, Any, Any], None]:
    """What puts a range's index and element into its variables."""

    def nothing(run: Run, mark: int, index: Any, element: Any) -> None:
        pass

    def assign(run: Run, mark: int, index: Any, element: Any) -> None:
        given = (index, element) if len(variables) > 1 else (element,)
        for name, value in zip(variables, given, strict=True):
            run.values[run.place(name)] = value

    def set_one(run: Run, mark: int, index: Any, element: Any) -> None:
        run.values[mark - 1] = element

    def set_two(run: Run, mark: int, index: Any, element: Any) -> None:
        run.values[mark - 1] = element
        run.values[mark - 2] = index

    if not variables:
        return nothing
    if assigns:
        return assign
    return set_two if len(variables) > 1 else set_one


def _pairs(run: Run, value: Any, variables: int) -> Any:
    """Indexes and elements of what a range goes over. Raises `Fault`."""
    if isinstance(value, LISTS):
        return enumerate(value)
    if isinstance(value, dict):
        run.take(len(value))
        return [(key, value[key]) for key in sorted(value)]
    if type(value) is int or (isinstance(value, int) and not isinstance(value, bool)):
        if variables > 1:
            raise Fault("a range over a number takes one variable")
        return ((NO_VALUE, number) for number in range(value))
    if value is NO_VALUE:
        return ()
    raise Fault(f"range does not go over {type_name(value)}")
