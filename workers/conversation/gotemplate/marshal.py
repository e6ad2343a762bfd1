"""Values as JSON, the way Go's encoding/json writes them: `json`, and what prints as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from json.encoder import encode_basestring
from typing import Any

from .errors import Fault
from .formatting import positional, shortest
from .literals import to_bytes
from .values import NO_VALUE, Slice, Struct, Window

_DEEPEST = 100
_ESCAPED = re.compile("[<>&\u2028\u2029\udc80-\udcff]")


def marshalled(value: Any) -> str:
    """JSON without spaces; keys of maps are sorted. Empty for what JSON has no form for."""
    try:
        return "".join(_pieces(value, 0))
    except ValueError:
        return ""


def _pieces(value: Any, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        raise Fault("a value is nested too deeply for JSON")
    match value:
        case str():
            yield _string(value)
        case bool():
            yield "true" if value else "false"
        case int():
            yield str(int(value))
        case float():
            yield _float(value)
        case Struct():
            yield "{"
            yield from _members(_fields(value), depth)
            yield "}"
        case dict():
            yield "{"
            # Go sorts by bytes, and characters are in the same order.
            yield from _members(((key, value[key]) for key in sorted(value, key=to_bytes)), depth)
            yield "}"
        case Slice():
            yield from _pieces(value.json_form(), depth)
        case list() | Window():
            yield "["
            for place, each in enumerate(value):
                if place:
                    yield ","
                yield from _pieces(each, depth + 1)
            yield "]"
        case _ if value is None or value is NO_VALUE:
            yield "null"
        case _:
            raise ValueError


def _fields(value: Struct) -> Iterator[tuple[str, Any]]:
    for name, each in value.fields.items():
        if name in value.json_omits and not each:
            continue
        yield value.json_names.get(name, name), each


def _members(pairs: Iterator[tuple[str, Any]], depth: int) -> Iterator[str]:
    for place, (name, each) in enumerate(pairs):
        yield f"{',' if place else ''}{_string(name)}:"
        yield from _pieces(each, depth + 1)


def _string(text: str) -> str:
    return _ESCAPED.sub(_escape, encode_basestring(text))


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return "\\ufffd" if code >= 0xDC80 else f"\\u{code:04x}"


def _float(value: float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError
    sign, digits, exponent = shortest(value)
    if -7 < exponent < 21:
        return sign + positional(digits, exponent)
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent)}"
