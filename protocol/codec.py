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
from pydantic_core import SchemaValidator

from .chunks import named_chunks, read_chunks, write_chunks
from .messages import MESSAGES
from .messages.generation import Chunks

_pack: Callable[..., bytes] = cast(Any, msgpack).packb
_unpack: Callable[..., Any] = cast(Any, msgpack).unpackb

VERSION = 5
"""Version of the schema. Peers of another version are refused at their `Hello`."""

MAX_HEADER = 8 * 1024 * 1024
"""Largest message in bytes: a list of some 20,000 models, or one model's vocabulary."""

_LENGTH = 4

_SMALL = 64 * 1024
"""Bytes in which there is no room for more lists and maps than can be borne."""

_BYTES_PER_CONTAINER = 12
"""Least bytes for each list and map of a message, on average. An empty one is a byte here and 64
bytes of memory there; those that mean something have names and values in them."""

_LONGEST_PLACE = 200


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
        envelope = _unpack(data) if len(data) <= _SMALL else _unpack_large(data)
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
        return _validator(name).validate_python(fields)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        # The sender's own text, where a key of its map is at fault.
        place = ascii(".".join(map(str, problem["loc"])))[1:-1][:_LONGEST_PLACE]
        raise MalformedMessage(f"{name}.{place}: {problem['msg']}") from None


def expect(*messages: type[Any]) -> None:
    """Gets ready to decode these, so that the first of each need not wait some milliseconds."""
    for message in messages:
        _validator(message.__name__)


def _unpack_large(data: bytes | memoryview) -> Any:
    room = max(len(data) // _BYTES_PER_CONTAINER, _SMALL)  # as many as fit into a small message

    def count(container: Any) -> Any:
        nonlocal room
        room -= 1
        if room < 0:
            raise MalformedMessage(f"too many lists and maps for {len(data)} bytes")
        return container

    return _unpack(data, list_hook=count, object_hook=count)


@cache
def _validator(name: str) -> SchemaValidator:
    return SchemaValidator(_failing_fast(TypeAdapter(MESSAGES[name]).core_schema))


def _failing_fast(schema: Any) -> Any:
    """A schema that stops at the first error of a list or map.

    As it is, a MiB of empty items where there should be messages takes three seconds and more than
    a GiB, for errors that nobody reads.
    """
    if isinstance(schema, list):
        return [_failing_fast(part) for part in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    parts = {name: _failing_fast(part) for name, part in cast(dict[str, Any], schema).items()}
    return parts | {"fail_fast": True} if parts.get("type") in ("list", "dict") else parts


@cache
def _field_names(cls: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


def _fields(value: Any) -> dict[str, Any]:
    """A dataclass as a map, one level deep: msgpack asks again for the dataclasses inside."""
    if not dataclasses.is_dataclass(value):
        raise TypeError(f"{type(value).__name__} does not travel")
    return {name: getattr(value, name) for name in _field_names(type(value))}
