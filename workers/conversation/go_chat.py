"""Chat templates in Go, used as Ollama uses them.

A template that speaks of `.Messages` is rendered once, with all messages. Older ones know
`.System`, `.Prompt` and `.Response`: they are rendered for one exchange after the other, and the
last time only up to `.Response`, where the model is to go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .go_values import mended, messages_value, size_of, tools_value
from .gotemplate import Limits, Run, Template
from .gotemplate.nodes import Action, Block, Branch, Command, Field, Pipeline, Statement, names_in
from .gotemplate.parser import MAIN
from .turns import Turn, turn_of

if TYPE_CHECKING:  # the program that tries templates starts quickly without it
    from ...protocol.messages.generation import ChatMessage

_STEPS = 200_000
_STEPS_PER_MESSAGE = 1_000
_OUTPUT = 1024 * 1024
"""Characters that a template may write beside eight times what it was given."""
_BUILT = 8 * 1024 * 1024
_RESPONSE = Block((Action(Pipeline(1, (Command(1, Field(("Response",)), ()),))),))

Think = bool | str | None
"""Whether the model is to think: yes, no, how much, or nothing was said of it."""


class GoChat:
    """A Go template for conversations. For many threads. All methods raise `GoTemplateError`."""

    def __init__(self, read: Template) -> None:
        names = {name.lower() for name in read.names}
        self._knows_messages = "messages" in names
        self.fills = "suffix" in names
        """Whether it has a place for the text behind a gap."""
        if not names & {"messages", "response"}:
            main = Block((*read.templates[MAIN].statements, *_RESPONSE.statements))
            read = Template({**read.templates, MAIN: main})
        self._template = self._last = read
        if not self._knows_messages:
            last, _ = _up_to_response(read.templates[MAIN])
            self._last = Template({**read.templates, MAIN: last})

    def render(
        self,
        messages: Sequence[ChatMessage | Turn],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        think: Think = None,
    ) -> str:
        """The prompt of a conversation, up to where the model is to speak."""
        turns = list(map(turn_of, messages))
        given = sum(map(_size, turns)) + sum(map(size_of, tools))
        run = Run(_limits(given, len(turns)))
        joined = _collated(turns)
        if self._knows_messages:
            values = {
                "System": mended("\n\n".join(t.content for t in turns if t.role == "system")),
                "Messages": messages_value(joined),
                "Tools": tools_value(tools),
                "Response": "",
            }
            self._template.render_to(run, values | _thinking(think))
        else:
            self._exchanges(run, joined, _thinking(think))
        return run.text()

    def fill(self, prompt: str, suffix: str, *, think: Think = None) -> str:
        """The prompt that asks for what stands between two texts."""
        values = {"Prompt": mended(prompt), "Suffix": mended(suffix), "Response": ""}
        run = Run(_limits(len(prompt) + len(suffix), 1))
        self._template.render_to(run, values | _thinking(think))
        return run.text()

    def _exchanges(self, run: Run, turns: Iterable[Turn], common: dict[str, Any]) -> None:
        exchange = {"System": "", "Prompt": "", "Response": ""}

        def finish() -> None:
            self._template.render_to(run, {**exchange, **common})
            exchange.update(System="", Prompt="", Response="")

        for turn in turns:
            content = mended(turn.content)
            match turn.role:
                case "system":
                    if exchange["Prompt"] or exchange["Response"]:
                        finish()
                    exchange["System"] = content
                case "user":
                    if exchange["Response"]:
                        finish()
                    exchange["Prompt"] = content
                case "assistant":
                    exchange["Response"] = content
                case _:
                    pass
        self._last.render_to(run, {**exchange, **common})


def _collated(turns: Iterable[Turn]) -> list[Turn]:
    """Neighbours of one role become one message, except results of tools."""
    groups: list[tuple[Turn, list[str]]] = []
    for turn in turns:
        if groups and groups[-1][0].role == turn.role != "tool":
            groups[-1][1].append(turn.content)
        else:
            groups.append((turn, [turn.content]))
    return [
        turn if len(texts) == 1 else replace(turn, content="\n\n".join(texts))
        for turn, texts in groups
    ]


def _thinking(think: Think) -> dict[str, Any]:
    return {
        "Think": bool(think),
        "ThinkLevel": mended(think) if isinstance(think, str) else "",
        "IsThinkSet": think is not None,
    }


def _size(turn: Turn) -> int:
    return len(turn.content) + len(turn.thinking) + sum(map(size_of, turn.tool_calls))


def _limits(given: int, messages: int) -> Limits:
    return Limits(
        steps=_STEPS + _STEPS_PER_MESSAGE * messages + given // 16,
        output=_OUTPUT + 8 * given,
        built=_BUILT + 16 * given,
    )


def _up_to_response(block: Block) -> tuple[Block, bool]:
    """A block without what stands behind `.Response`, and whether that is anywhere in it.

    The branches of an `if` do not stand behind each other.
    """
    kept: list[Statement] = []
    for statement in block.statements:
        found = False
        if isinstance(statement, Branch):
            statement, found = _branch_up_to_response(statement)
        elif isinstance(statement, Action):
            found = "Response" in names_in(statement)
        kept.append(statement)
        if found:
            return Block(tuple(kept)), True
    return block, False


def _branch_up_to_response(branch: Branch) -> tuple[Branch, bool]:
    parts = [(pipeline, *_up_to_response(body)) for pipeline, body in branch.parts]
    otherwise, found = _up_to_response(branch.otherwise or Block())
    if not found and not any(each for _, _, each in parts):
        return branch, False
    bodies = tuple((pipeline, body) for pipeline, body, _ in parts)
    return Branch(branch.word, bodies, otherwise), True
