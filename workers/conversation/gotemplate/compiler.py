"""From a tree to closures: each statement becomes a function, so that rendering walks no tree.

A statement returns None, or the word of a `break` or `continue` that is on its way to its range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .errors import Fault, GoTemplateError
from .expressions import evaluation
from .formatting import shown
from .nodes import Action, Block, Branch, Call, Leave, Pipeline, Statement, Text
from .running import Run
from .values import LISTS, NO_VALUE, type_name

Step = Callable[[Run, Any], str | None]
"""Does a statement; the second argument is dot."""


class Compiler:
    """Makes the templates of one source into steps, by name."""

    def __init__(self, templates: Mapping[str, Block]) -> None:
        self.steps: dict[str, Step] = {}
        for name, block in templates.items():
            self.steps[name] = self._block(block)

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
        evaluate = evaluation(pipeline)
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
        parts = [(evaluation(pipeline), self._block(body)) for pipeline, body in branch.parts]
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
        evaluate, body = evaluation(pipeline), self._block(block)
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
        evaluate = evaluation(call.pipeline) if call.pipeline else None
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
