"""`Chunks` to what msgpack takes and back, by hand: there is a part of it for every token.

A chunk is an array on the wire, its fields in their order, where any other message is a map: that
is half the bytes and a third of the time. What stands at the end and says nothing is left out, so
that plain text has six elements and thinking seven. `codec` alone uses this.
"""

from __future__ import annotations

import dataclasses
import re
from operator import attrgetter
from typing import Any, cast

from .messages.generation import Chunk, Chunks

_MAX_COUNT = 2**63
_MAX_TOKEN = 2**31
_REQUEST = re.compile(r"[0-9a-f]{32}")
_NAMES = tuple(field.name for field in dataclasses.fields(Chunk))
_PLAIN = 6
_THINKING = 7

_thinking = attrgetter(*_NAMES[:_THINKING])
_whole = attrgetter(*_NAMES)

_MOST_KNOWN = 4096
_known: set[str] = set()
"""Requests' ids that were found to be such: every chunk of a stream has the same."""


def write_chunks(message: Chunks) -> dict[str, Any]:
    """The fields of `message`."""
    return {
        "chunks": [
            _write(chunk)
            if chunk.thinking or chunk.calls is not None or chunk.told is not None
            else (
                chunk.request,
                chunk.attempt,
                chunk.index,
                chunk.tokens,
                chunk.text,
                chunk.logprobs,
            )
            for chunk in message.chunks
        ]
    }


def _write(chunk: Chunk) -> tuple[Any, ...]:
    if chunk.calls is not None or chunk.told is not None:
        return _whole(chunk)
    return _thinking(chunk)


def read_chunks(fields: Any) -> Chunks | None:
    """The message with these fields, as msgpack gives them; None where they are not exactly what
    `write_chunks` writes for chunks with text and thinking alone.
    """
    try:
        (listed,) = fields.values()
        if type(fields["chunks"]) is not list:
            return None
        chunks: list[Chunk] = []
        for each in listed:
            if len(each) == _PLAIN:
                request, attempt, index, tokens, text, logprobs = each
                thinking = ""
            else:
                request, attempt, index, tokens, text, logprobs, thinking = each
                if type(thinking) is not str:
                    return None
            if not (
                (request in _known or _is_request(request))
                and type(attempt) is int
                and 1 <= attempt <= 1000
                and type(index) is int
                and 0 <= index < _MAX_COUNT
                and tokens.__class__ is list
                and type(text) is str
                and logprobs is None
            ):
                return None
            for token in tokens:
                if type(token) is not int or not 0 <= token < _MAX_TOKEN:
                    return None
            chunks.append(Chunk(request, attempt, index, tokens, text, None, thinking))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return Chunks(chunks)


def named_chunks(fields: Any) -> Any:
    """The fields with a map in each chunk's place, for whoever checks any message.

    None stands for what is no chunk. Elements behind those that are known are ignored.
    """
    match fields:
        case {"chunks": list()}:
            listed = cast(list[Any], fields["chunks"])
        case _:
            return None
    return {
        "chunks": [
            dict(zip(_NAMES, cast(list[Any], each), strict=False))
            if isinstance(each, list)
            else None
            for each in listed
        ]
    }


def _is_request(value: Any) -> bool:
    """Whether this is a request's id."""
    if type(value) is not str or not _REQUEST.fullmatch(value):
        return False
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known.add(value)
    return True
