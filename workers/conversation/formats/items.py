"""Finds a known call in what a template wrote, and tells in which syntax it is written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .description import Parameter, Syntax
from .probing import ProbeCall, common_end, common_start
from .values import NotAValue, load, load_at

_FAR = 400
"""Characters between the parts of one call, at most."""
_TRIES = 40


@dataclass(frozen=True, slots=True)
class Item:
    """One call within a text: from its first variable part, or first bracket, to its last."""

    syntax: Syntax
    start: int
    end: int
    name: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    id: tuple[str, ...] = ()
    textual: bool = False
    constants: tuple[tuple[str, str], ...] = ()
    between: str = ""
    quote: str = ""
    parameter: Parameter | None = None


def find_item(text: str, call: ProbeCall, other: ProbeCall, position: int = 0) -> Item | None:
    """Where and how `call` stands in a text, alone; None where that cannot be read."""
    at = text.find(call.name, position)
    if at < 0:
        return None
    return (
        _object(text, call, other, position, at)
        or _named(text, call, at)
        or _loose(text, call, at)
        or _with_arguments(text, call, at)
    )


def _object(text: str, call: ProbeCall, other: ProbeCall, position: int, at: int) -> Item | None:
    start = position
    for _ in range(_TRIES):
        start = text.find("{", start, at)
        if start < 0:
            return None
        try:
            value, end = load_at(text, start)
        except NotAValue:
            value, end = None, 0
        if end > at and isinstance(value, dict) and other.name not in text[start:end]:
            found = _paths(value, call)
            if found:
                name, arguments, textual = found
                return Item(
                    Syntax.OBJECT,
                    start,
                    end,
                    name,
                    arguments,
                    _path(value, call.id) or (),
                    textual,
                    tuple(
                        (key, each)
                        for key, each in value.items()
                        if isinstance(each, str)
                        and each not in (call.name, call.id)
                        and (key,) != arguments
                    ),
                )
        start += 1
    return None


def _paths(
    value: dict[str, Any], call: ProbeCall
) -> tuple[tuple[str, ...], tuple[str, ...], bool] | None:
    if value.get(call.name) == call.arguments:
        return (), (), False
    name = _path(value, call.name)
    if not name:
        return None
    if arguments := _path(value, call.arguments):
        return name, arguments, False
    for path, each in _leaves(value):
        if isinstance(each, str) and each.startswith("{"):
            try:
                if load(each) == call.arguments:
                    return name, path, True
            except NotAValue:
                continue
    return None


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Sequence[tuple[tuple[str, ...], Any]]:
    if not isinstance(value, dict):
        return [(path, value)]
    return [leaf for key, each in value.items() for leaf in _leaves(each, (*path, str(key)))]


def _path(value: Any, wanted: Any) -> tuple[str, ...] | None:
    """The keys on the way to a value."""
    if not isinstance(value, Mapping):
        return None
    for key, each in value.items():
        if each == wanted:
            return (str(key),)
        if (deeper := _path(each, wanted)) is not None:
            return (str(key), *deeper)
    return None


def _named(text: str, call: ProbeCall, at: int) -> Item | None:
    behind = at + len(call.name)
    start = text.find("{", behind, behind + _FAR)
    if start < 0:
        return None
    try:
        value, end = load_at(text, start)
    except NotAValue:
        return None
    if value != call.arguments:
        return None
    return Item(Syntax.NAMED, at, end, between=text[behind:start])


def _loose(text: str, call: ProbeCall, at: int) -> Item | None:
    """A call whose arguments are an object with bare keys, and with texts between markers."""
    behind = at + len(call.name)
    start = text.find("{", behind, behind + _FAR)
    if start < 0:
        return None
    end, quote = start + 1, ""
    for key, value in call.arguments.items():
        member = rf",?\s*{re.escape(key)}\s*:\s*(\S{{1,40}}?){re.escape(value)}"
        found = re.compile(member).match(text, end)
        if not found or (quote and found[1] != quote):
            return None
        quote, end = found[1], found.end() + len(found[1])
        if not text.startswith(quote, found.end()):
            return None
    if text[end : end + 1] != "}":
        return None
    return Item(Syntax.NAMED, at, end + 1, between=text[behind:start], quote=quote)


def _with_arguments(text: str, call: ProbeCall, at: int) -> Item | None:
    """A call whose arguments stand one by one, as tags or as Python has them."""
    gaps: list[str] = []
    end = at + len(call.name)
    for each in [part for pair in call.arguments.items() for part in pair]:
        start = text.find(each, end, end + _FAR)
        if start < 0:
            return None
        gaps.append(text[end:start])
        end = start + len(each)
    first, middle, again, same = gaps
    rest = text[end:]
    if middle != same:
        return None
    if first.strip() == "(":
        bracket = re.match(r"[\"']?\s*\)", rest)
        return Item(Syntax.PYTHON, at, end + bracket.end()) if bracket else None
    quoted = middle.endswith('"') and again.startswith('"') and rest.startswith('"')
    if quoted:
        middle, again, rest, end = middle[:-1], again[1:], rest[1:], end + 1
    closing = common_start(again, rest)
    opening = min(common_end(first, again), len(again) - closing)
    if not again[:closing].strip() or not middle.strip() or not opening:
        return None
    parameter = Parameter(
        start=again[len(again) - opening :],
        middle=middle,
        end=again[:closing],
        separator=again[closing : len(again) - opening],
        quoted=quoted,
    )
    between = first[: len(first) - opening]
    return Item(Syntax.TAGGED, at, end + closing, between=between, parameter=parameter)
