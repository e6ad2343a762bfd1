"""`Chunks` as a map and back, by hand: the one message of which there is a part for every token.

What is written here is what the codec writes of any message, and what is read here is what it would
read: a map that is not exactly as expected is left to it. `codec` alone uses this.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from .messages.generation import Chunk, Chunks

_MAX_COUNT = 2**63
_MAX_TOKEN = 2**31
_FIELDS = 6
"""Of a chunk."""

_REQUEST_LENGTH = 32
_REQUEST = re.compile(r"[0-9a-f]+")


def write_chunks(message: Chunks) -> dict[str, Any]:
    """The fields of `message`."""
    return {
        "chunks": [
            {
                "request": chunk.request,
                "attempt": chunk.attempt,
                "index": chunk.index,
                "tokens": chunk.tokens,
                "text": chunk.text,
                "logprobs": chunk.logprobs,
            }
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
        for each in listed:
            request, attempt, index = each["request"], each["attempt"], each["index"]
            tokens, text = each["tokens"], each["text"]
            if not (
                type(request) is str
                and len(request) == _REQUEST_LENGTH  # before it is remembered
                and _is_request(request)
                and type(attempt) is int
                and 1 <= attempt <= 1000
                and type(index) is int
                and 0 <= index < _MAX_COUNT
                and tokens.__class__ is list  # which leaves the type of its elements open
                and type(text) is str
                and each["logprobs"] is None
                and len(each) == _FIELDS
            ):
                return None
            for token in tokens:
                if type(token) is not int or not 0 <= token < _MAX_TOKEN:
                    return None
            chunks.append(Chunk(request, attempt, index, tokens, text))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return Chunks(chunks)


@lru_cache(4096)
def _is_request(text: str) -> bool:
    """Whether this is a request's id. Every chunk of a stream has the same."""
    return _REQUEST.fullmatch(text) is not None
