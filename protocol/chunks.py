"""`Chunks` to what msgpack takes and back, by hand: there is a part of it for every token.

A chunk is an array on the wire, its fields in their order, where any other message is a map: that
is half the bytes and a third of the time. `codec` alone uses this.
"""

from __future__ import annotations

import dataclasses
import re
from functools import lru_cache
from typing import Any, cast

from .messages.generation import Chunk, Chunks

_MAX_COUNT = 2**63
_MAX_TOKEN = 2**31
_REQUEST_LENGTH = 32
_REQUEST = re.compile(r"[0-9a-f]+")
_NAMES = tuple(field.name for field in dataclasses.fields(Chunk))


def write_chunks(message: Chunks) -> dict[str, Any]:
    """The fields of `message`."""
    return {
        "chunks": [
            (
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


def read_chunks(fields: Any) -> Chunks | None:
    """The message with these fields, as msgpack gives them; None where they are not exactly what
    `write_chunks` writes for chunks without log probabilities.
    """
    try:
        (listed,) = fields.values()
        if type(fields["chunks"]) is not list:
            return None
        chunks: list[Chunk] = []
        for request, attempt, index, tokens, text, logprobs in listed:
            if not (
                type(request) is str
                and len(request) == _REQUEST_LENGTH  # before it is remembered
                and _is_request(request)
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
            chunks.append(Chunk(request, attempt, index, tokens, text))
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


@lru_cache(4096)
def _is_request(text: str) -> bool:
    """Whether this is a request's id. Every chunk of a stream has the same."""
    return _REQUEST.fullmatch(text) is not None
