"""Messages to bytes and back.

A message is one frame: the msgpack array `[name, fields]`, where `name` is the class's and
`fields` a map. Nothing but the classes in `MESSAGES` is ever decoded, every field is checked
against its declared type and bound, unknown fields are ignored so that a newer peer may add some,
and a frame over its limit is refused before it is parsed. An opaque body may follow as a second
frame; see `GenerateBody`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]
from pydantic import TypeAdapter, ValidationError

from .messages import MESSAGES

_pack: Callable[..., bytes] = cast(Any, msgpack).packb
_unpack: Callable[[bytes | memoryview], Any] = cast(Any, msgpack).unpackb

VERSION = 1
"""Version of the schema. Peers of another version are refused at their `Hello`."""

MAX_HEADER = 8 * 1024 * 1024
"""Largest message frame in bytes: a list of some 20,000 models, or one model's vocabulary."""


class MalformedMessage(Exception):
    """A frame that is no message of ours. Its text is for the log, never for a client."""


def encode(message: Any) -> bytes:
    """The frame that carries `message`, an instance of one of `MESSAGES`."""
    return _pack((type(message).__name__, _fields(message)), default=_fields)


def decode(frame: bytes | memoryview, limit: int = MAX_HEADER) -> Any:
    """The message that `frame` carries.

    Raises `MalformedMessage` when the frame is over `limit` bytes, is not msgpack, names no known
    message, or has a field that is missing, of the wrong type or out of bounds.
    """
    if len(frame) > limit:
        raise MalformedMessage(f"{len(frame)} bytes are over the limit of {limit}")
    try:
        envelope = _unpack(frame)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise MalformedMessage(f"not msgpack: {type(error).__name__}") from None
    match envelope:
        case [str(name), fields] if name in MESSAGES:
            pass
        case [str(name), _]:
            raise MalformedMessage(f"no message is called {name[:64]!r}")
        case _:
            raise MalformedMessage("not an envelope [name, fields]")
    try:
        return _adapter(name).validate_python(fields)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, problem["loc"]))
        raise MalformedMessage(f"{name}.{place}: {problem['msg']}") from None


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
