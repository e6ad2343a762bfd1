"""Messages to bytes and back.

A message is the msgpack array `[name, fields]`, where `name` is the class's and `fields` a map; see
`chunks` for the one exception.
Nothing but the classes in `MESSAGES` is ever decoded, every field is checked against its declared
type and bound, unknown fields are ignored so that a newer peer may add some, and what is over its
limit is refused before it is parsed.

On a socket it travels in a frame: the message's length in 4 bytes, the message, and an opaque body
behind it where there is one; see `GenerateBody`. Never in two frames: libzmq 4.3.5 aborts the
process when a connection breaks on which a message of several frames was half sent by a socket that
has been closed meanwhile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]
from pydantic import TypeAdapter, ValidationError

from .chunks import named_chunks, read_chunks, write_chunks
from .messages import MESSAGES
from .messages.generation import Chunks

_pack: Callable[..., bytes] = cast(Any, msgpack).packb
_unpack: Callable[[bytes | memoryview], Any] = cast(Any, msgpack).unpackb

VERSION = 3
"""Version of the schema. Peers of another version are refused at their `Hello`."""

MAX_HEADER = 8 * 1024 * 1024
"""Largest message in bytes: a list of some 20,000 models, or one model's vocabulary."""

_LENGTH = 4


class MalformedMessage(Exception):
    """Bytes that are no message of ours. Its text is for the log, never for a client."""


def join(message: Any, body: bytes = b"") -> bytes:
    """The frame that carries `message` and its body."""
    encoded = encode(message)
    return b"".join((len(encoded).to_bytes(_LENGTH, "big"), encoded, body))


def split(frame: bytes) -> tuple[Any, bytes]:
    """Message and body of a frame. Raises `MalformedMessage` as `decode` does."""
    end = _LENGTH + int.from_bytes(frame[:_LENGTH], "big")
    if not _LENGTH < end <= len(frame):
        raise MalformedMessage(f"{len(frame)} bytes do not hold a message of the length they say")
    return decode(memoryview(frame)[_LENGTH:end]), frame[end:]


def encode(message: Any) -> bytes:
    """The bytes of `message`, an instance of one of `MESSAGES`."""
    fields = write_chunks(message) if type(message) is Chunks else _fields(message)
    return _pack((type(message).__name__, fields), default=_fields)


def decode(data: bytes | memoryview, limit: int = MAX_HEADER) -> Any:
    """The message that `data` holds.

    Raises `MalformedMessage` when it is over `limit` bytes, is not msgpack, names no known
    message, or has a field that is missing, of the wrong type or out of bounds.
    """
    if len(data) > limit:
        raise MalformedMessage(f"{len(data)} bytes are over the limit of {limit}")
    try:
        envelope = _unpack(data)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise MalformedMessage(f"not msgpack: {type(error).__name__}") from None
    match envelope:
        case [str(name), fields] if name in MESSAGES:
            pass
        case [str(name), _]:
            raise MalformedMessage(f"no message is called {name[:64]!r}")
        case _:
            raise MalformedMessage("not an envelope [name, fields]")
    if name == Chunks.__name__:
        if chunks := read_chunks(fields):
            return chunks
        fields = named_chunks(fields)
    try:
        return _adapter(name).validate_python(fields)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, problem["loc"]))
        raise MalformedMessage(f"{name}.{place}: {problem['msg']}") from None


def expect(*messages: type[Any]) -> None:
    """Gets ready to decode these, so that the first of each need not wait some milliseconds."""
    for message in messages:
        _adapter(message.__name__)


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(MESSAGES[name])


@cache
def _field_names(cls: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


def _fields(value: Any) -> dict[str, Any]:
    """A dataclass as a map, one level deep: msgpack asks again for the dataclasses inside."""
    if not dataclasses.is_dataclass(value):
        raise TypeError(f"{type(value).__name__} does not travel")
    return {name: getattr(value, name) for name in _field_names(type(value))}
