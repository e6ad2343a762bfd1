"""What an answer says beside its text: how it is read, and how that travels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from ...protocol.messages.fields import MAX_DEPTH
from ...protocol.messages.generation import GenerateBody, ToolCall
from ..conversation.formats.description import Format
from ..conversation.formats.parser import AnswerParser
from ..conversation.formats.said import Call, Content, Said, Thinking

_INT64 = range(-(2**63), 2**63)
_CALL_ID_DIGITS = 8


class Parser(Protocol):
    """Tells apart what one answer says. What it says depends on the text alone, not on its cuts."""

    def push(self, text: str) -> list[Said]:
        """What is certain after `text`, which goes on where the last one ended."""
        ...

    def finish(self) -> list[Said]:
        """What was held back, once nothing follows."""
        ...


@dataclass(frozen=True, slots=True)
class Reading:
    """How the answers of a model are read whose answers are more than text."""

    begin: Callable[[GenerateBody, str], Parser | None]
    """The parser of one answer, from the request and the end of its prompt as text; None where that
    answer is text alone. May be called by several threads at a time, and raise `PronkError`."""
    markers: Sequence[str] | None = None
    """Texts that the parser looks for. A control token that is no part of any is none of its
    business, and as invisible as ever. None: the parser sees them all."""

    def hears(self, control: str) -> bool:
        """Whether the parser is to see a control token that is written so."""
        return self.markers is None or any(control in marker for marker in self.markers)


def reading_of(form: Format) -> Reading | None:
    """How answers in a format are read; None where all of them is text."""
    if form.plain:
        return None

    def begin(body: GenerateBody, end: str) -> Parser:
        return AnswerParser.behind(end, form, tools=body.tools)

    return Reading(begin, form.markers)


def units(said: Said) -> int:
    """What counts as released of it: its characters, or 1 for a call."""
    return 1 if isinstance(said, Call) else len(said.text)


def beyond(said: Iterable[Said], released: int) -> list[Said]:
    """What was said behind the first `released` units."""
    rest: list[Said] = []
    for each in said:
        size = units(each)
        if released >= size:
            released -= size
            continue
        if released and not isinstance(each, Call):
            each = type(each)(each.text[released:])
        released = 0
        rest.append(each)
    return rest


@dataclass(slots=True)
class Parcel:
    """What fits into one chunk: thinking, then text, then calls."""

    thinking: str = ""
    text: str = ""
    calls: list[ToolCall] | None = None

    def take(self, said: Said) -> bool:
        """Adds it, if it does not have to come before what is here already."""
        match said:
            case Thinking(text):
                if self.text or self.calls:
                    return False
                self.thinking += text
            case Content(text):
                if self.calls:
                    return False
                self.text += text
            case Call():
                self.calls = [*(self.calls or ()), as_message(said)]
        return True


def parcels(said: Iterable[Said]) -> list[Parcel]:
    """All of it in its order: at least one parcel, if need be with nothing in it."""
    packed = [Parcel()]
    for each in said:
        if not packed[-1].take(each):
            packed.append(Parcel())
            packed[-1].take(each)
    return packed


def as_message(call: Call) -> ToolCall:
    """A call as the wire and JSON can say it, with an id of its own where the model gave none.

    Half a character becomes U+FFFD, a number without a finite value null, one of more than 64 bits
    a float, and what is nested too deeply null.
    """
    id_ = _text(call.id) or f"call_{uuid4().hex[:_CALL_ID_DIGITS]}"
    arguments = {_text(str(name)): _sound(value, 2) for name, value in call.arguments.items()}
    return ToolCall(_text(call.name), arguments, id_)


def _sound(value: Any, depth: int) -> Any:
    match value:
        case str():
            return _text(value)
        case bool() | None:
            return value
        case int():
            return value if value in _INT64 else _sound(_float(value), depth)
        case float():
            return value if math.isfinite(value) else None
        case dict() if depth <= MAX_DEPTH:
            return {_text(str(name)): _sound(each, depth + 1) for name, each in value.items()}
        case list() | tuple() if depth <= MAX_DEPTH:
            return [_sound(each, depth + 1) for each in value]
        case _:
            return None


def _float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
