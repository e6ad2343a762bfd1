"""The words of users in a conversation and its tools: all text but the words of the interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from ...protocol.errors import Code, PronkError
from .specials import Mark, unchanged
from .turns import Turn

_DEEPEST = 100
_INTERFACE = frozenset(
    {"type", "function", "name", "description", "parameters", "properties", "required", "items"}
    | {"enum", "anyOf", "oneOf", "allOf", "default", "format", "title", "nullable", "return"}
    | {"returns", "additionalProperties", "$defs", "$ref", "strict", "const", "minimum"}
    | {"maximum", "arguments", "id", "index"}
)
"""Keys that templates look for in tools."""
_TYPES = frozenset(
    {"function", "string", "number", "integer", "boolean", "array", "object", "null", "any"}
)
"""Values that they compare `type` with."""


@dataclass(frozen=True, slots=True)
class Talk:
    """What a template is to render: a conversation, and the tools that are offered in it."""

    turns: Sequence[Turn]
    tools: Sequence[Mapping[str, Any]] = ()

    def words(self) -> list[str]:
        """All texts of users. Raises `PronkError` where something is nested too deeply."""
        return [
            *(text for turn in self.turns for text in _texts(turn)),
            *_strings(list(self.tools)),
        ]

    def marked(self, mark: Mark) -> Talk:
        """The same with all texts of users changed."""
        if mark is unchanged:
            return self
        turns = [_marked(turn, mark) for turn in self.turns]
        return Talk(turns, [_changed(tool, mark) for tool in self.tools])

    @property
    def size(self) -> int:
        """Characters, about."""
        return sum(len(word) + 8 for word in self.words())


def _texts(turn: Turn) -> Iterator[str]:
    yield from (turn.content, turn.thinking, turn.tool_name, turn.tool_call_id)
    if turn.tool_calls:
        yield from _strings(list(turn.tool_calls))


def _marked(turn: Turn, mark: Mark) -> Turn:
    own = turn.role == "assistant"
    return replace(
        turn,
        content=mark(turn.content, own=own),
        thinking=mark(turn.thinking, own=own),
        tool_name=mark(turn.tool_name),
        tool_call_id=mark(turn.tool_call_id),
        tool_calls=[_changed(call, mark) for call in turn.tool_calls],
    )


def _strings(value: Any, depth: int = 0) -> Iterator[str]:
    if depth > _DEEPEST:
        raise PronkError(
            Code.INVALID_REQUEST, f"tools and calls may be nested {_DEEPEST} times; make them flat"
        )
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, one in cast(Mapping[str, Any], value).items():
            if key not in _INTERFACE:
                yield key
            if not _is_type(key, one):
                yield from _strings(one, depth + 1)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for one in cast(Sequence[Any], value):
            yield from _strings(one, depth + 1)


def _changed(value: Any, mark: Mark) -> Any:
    if isinstance(value, str):
        return mark(value)
    if isinstance(value, Mapping):
        pairs = cast(Mapping[str, Any], value).items()
        return {
            key if key in _INTERFACE else mark(key): one
            if _is_type(key, one)
            else _changed(one, mark)
            for key, one in pairs
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_changed(one, mark) for one in cast(Sequence[Any], value)]
    return value


def _is_type(key: str, value: Any) -> bool:
    return key == "type" and isinstance(value, str) and value in _TYPES
