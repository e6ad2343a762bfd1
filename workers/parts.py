"""The files of a model beside its weights, as the worker that loads it reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson

from ..protocol.errors import Code, PronkError
from ..protocol.messages.generation import ChatMessage
from ..protocol.messages.library import ModelPart, PartKind
from .conversation.opening import NO_OPENING, Opening
from .store.files import Damaged, read_small

MAX_TEXT = 2 * 1024 * 1024
"""Bytes of a text, as the library bounds them."""

_MAX_MESSAGES = 16_384
_NAMES = {
    PartKind.TEMPLATE: "its TEMPLATE",
    PartKind.SYSTEM: "its SYSTEM",
    PartKind.MESSAGES: "its list of MESSAGEs",
}
_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Parts:
    """What the parts of a model say."""

    opening: Opening
    template: str | None
    """The Modelfile's TEMPLATE, in whatever language."""
    adapters: tuple[Path, ...]
    """GGUF files, in the order in which they are applied."""
    projectors: tuple[Path, ...] = ()
    """GGUF files by which the model takes something else than text, such as images."""


NO_PARTS = Parts(NO_OPENING, None, ())


def adapters_of(parts: Sequence[ModelPart]) -> tuple[Path, ...]:
    """The files of the adapters among the parts."""
    return tuple(Path(part.path) for part in parts if part.kind is PartKind.ADAPTER)


def projectors_of(parts: Sequence[ModelPart]) -> tuple[Path, ...]:
    """The files of the projectors among the parts."""
    return tuple(Path(part.path) for part in parts if part.kind is PartKind.PROJECTOR)


def read_parts(parts: Sequence[ModelPart]) -> Parts:
    """Reads a model's texts. Of several of one kind, the last one counts.

    Raises `PronkError` (LOAD_FAILED) when one cannot be read, or is not what it should be.
    """
    try:
        template = _text(parts, PartKind.TEMPLATE)
        system = _text(parts, PartKind.SYSTEM)
        messages = _messages(_text(parts, PartKind.MESSAGES))
    except Damaged as error:
        raise PronkError(Code.LOAD_FAILED, str(error)) from None
    return Parts(
        Opening(system, messages), template or None, adapters_of(parts), projectors_of(parts)
    )


def _text(parts: Sequence[ModelPart], kind: PartKind) -> str:
    """Empty where there is none."""
    path = next((part.path for part in reversed(parts) if part.kind is kind), None)
    if path is None:
        return ""
    return read_small(Path(path), MAX_TEXT, _NAMES[kind]).decode("utf-8", "replace")


def _messages(text: str) -> tuple[ChatMessage, ...]:
    what = _NAMES[PartKind.MESSAGES]
    if not text:
        return ()
    try:
        value = orjson.loads(text)
    except ValueError:
        raise Damaged(f"{what} is not valid JSON") from None
    if not isinstance(value, list) or len(cast(list[Any], value)) > _MAX_MESSAGES:
        raise Damaged(f"{what} is no list of at most {_MAX_MESSAGES}")
    return tuple(_message(place, one) for place, one in enumerate(cast(list[Any], value), 1))


def _message(place: int, value: object) -> ChatMessage:
    match value:
        case {"role": str(role), "content": str(content)} if role.lower() in _ROLES:
            return ChatMessage(cast(Any, role.lower()), content)
        case _:
            raise Damaged(f"its MESSAGE {place} needs a role ({', '.join(_ROLES)}) and a content")
