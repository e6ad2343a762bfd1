"""What an answer consists of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """What the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool that the model wants to be called."""

    name: str
    arguments: dict[str, Any]
    id: str = ""
    """What the model itself calls it; empty for models that write none."""


Said = Content | Thinking | Call


def joined(parts: Iterable[Said]) -> list[Said]:
    """The same with neighbours of one kind put together: what does not depend on cuts."""
    result: list[Said] = []
    for part in parts:
        last = result[-1] if result else None
        if isinstance(part, Content) and isinstance(last, Content):
            result[-1] = Content(last.text + part.text)
        elif isinstance(part, Thinking) and isinstance(last, Thinking):
            result[-1] = Thinking(last.text + part.text)
        else:
            result.append(part)
    return result
