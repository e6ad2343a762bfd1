"""From the parts of an action to closures that evaluate them, so that nothing is looked up twice.

They give values as `values` lists them; errors without a line are `Fault`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import Fault, GoTemplateError
from .functions import FUNCTIONS
from .nodes import (
    Chain,
    Command,
    Constant,
    Dot,
    Field,
    Nil,
    Operand,
    Pipeline,
    Variable,
)
from .nodes import Function as FunctionName
from .running import Run
from .values import NO_VALUE, Map, Struct, methods_of, type_name

Value = Callable[[Run, Any], Any]
"""Evaluates an operand; the second argument is dot."""


def evaluation(pipeline: Pipeline) -> Value:
    """What evaluates a pipeline, and sets its variables. It raises `GoTemplateError`."""
    first, *others = (_command(c, piped=i > 0) for i, c in enumerate(pipeline.commands))
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


def _command(command: Command, *, piped: bool) -> Callable[[Run, Any, Any], Any]:
    """Evaluates a command; the third argument is the value before it, if it is `piped`."""
    operand, arguments = command.operand, command.arguments
    if isinstance(operand, FunctionName):
        return _function(command, piped=piped)
    if isinstance(operand, Nil):
        return _failing("nil alone is no value")
    takes = bool(arguments) or piped
    if takes and isinstance(operand, (Dot, Constant, Pipeline)):
        return _failing("arguments follow what is no function")
    if takes and isinstance(operand, Variable) and not operand.fields:
        return _failing(f"arguments follow {operand.name[:40]}, which is no function")
    evaluate = _operand(operand, takes=takes)
    return lambda run, dot, final: evaluate(run, dot)


def _function(command: Command, *, piped: bool) -> Callable[[Run, Any, Any], Any]:
    assert isinstance(command.operand, FunctionName)
    name = command.operand.name
    function = FUNCTIONS[name]
    arguments = [_operand(argument) for argument in command.arguments]
    count = len(arguments) + piped
    if not function.takes(count):
        return _failing(f"{name} does not take {count} values")
    if name in ("and", "or"):
        return _short_circuit(arguments, name == "or", piped=piped)
    return _application(name, function.call, arguments, command.line, piped=piped)


def _operand(operand: Operand, *, takes: bool = False) -> Value:
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
            return _follow(_operand(of), fields, takes)
        case FunctionName():
            command = _function(Command(0, operand, ()), piped=False)
            return lambda run, dot: command(run, dot, None)
        case Pipeline():
            return evaluation(operand)


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
