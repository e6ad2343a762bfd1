"""The kinds of values that message fields hold, each with its bound.

Strict, so that a peer's `"1"` is no number; bounded, so that no peer can make another one store
more than the message's own limit allows.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, cast

from pydantic import AfterValidator, Field, Strict

_MAX = 2**63 - 1

Count = Annotated[int, Strict(), Field(ge=0, le=_MAX)]
"""A number of things, of bytes, or of nanoseconds."""

Number = Annotated[float, Field(strict=False, allow_inf_nan=False)]
"""A finite real number; integers are accepted."""

Integer = Annotated[int, Strict(), Field(ge=-_MAX, le=_MAX)]

LookBack = Annotated[int, Strict(), Field(ge=-1, le=_MAX)]
"""A number of tokens; −1 for as many as there are."""

Flag = Annotated[bool, Strict()]

Label = Annotated[str, Strict(), Field(max_length=512)]
"""A short text: a name, an identity, a state."""

Text = Annotated[str, Strict()]
"""Text that only the message's own size bounds."""

MAX_DEPTH = 100
"""Levels of lists and maps within one another that JSON may have here."""

MAX_IMAGE = 32 * 1024 * 1024
"""Bytes of one image as it was sent, compressed."""

MAX_IMAGES = 1_024
"""Of one message."""

MAX_TOOLS = 4_096


def only_json(value: Any) -> Any:
    """The value. Raises `ValueError` where JSON cannot say it, or it is nested too deeply."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for each in level:
            match each:
                case dict():
                    names = cast(dict[Any, Any], each)
                    if not all(isinstance(name, str) for name in names):
                        raise ValueError("a name in it is no text")
                    below += names.values()
                case list():
                    below += cast(list[Any], each)
                case float():
                    if not math.isfinite(each):
                        raise ValueError("a number in it is not finite")
                case str() | int() | None:
                    pass
                case _:
                    raise ValueError("a value in it is no JSON")
        if not below:
            return value
        level = below
    raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")


JsonMap = Annotated[dict[str, Any], AfterValidator(only_json)]
"""A JSON object: texts as names, numbers finite, at most 100 levels."""

Image = Annotated[bytes, Strict(), Field(max_length=MAX_IMAGE)]
"""An image file, of at most 32 MiB."""

Images = Annotated[list[Image], Field(max_length=MAX_IMAGES)]

Digest = Annotated[str, Strict(), Field(pattern=r"^[0-9a-f]{64}$")]
"""A SHA-256 in lower-case hexadecimal, without a prefix."""

RequestId = Annotated[str, Strict(), Field(pattern=r"^[0-9a-f]{32}$")]
"""A UUID in 32 hexadecimal digits, chosen by the frontend."""

Attempt = Annotated[int, Strict(), Field(ge=1, le=1000)]
"""Which try of a request this is: chosen by the frontend, the first is 1."""

Token = Annotated[int, Strict(), Field(ge=0, lt=2**31)]
"""A token id of the model's vocabulary."""

Seed = Annotated[int, Strict(), Field(ge=0, lt=2**32)]
"""A resolved seed: a client's −1 or absence has become a number before it travels."""

Incarnation = Annotated[str, Strict(), Field(pattern=r"^[0-9a-f]{16}$")]
"""One life of one process: random, also its ZeroMQ identity."""

Endpoint = Annotated[str, Strict(), Field(max_length=256, pattern=r"^ipc://")]
"""A ZeroMQ address at which a process can be reached."""

TcpEndpoint = Annotated[str, Strict(), Field(max_length=256, pattern=r"^tcp://[^\s/]+:[0-9]{1,5}$")]
"""The same for processes of other hosts. The address `0.0.0.0` or `[::]` stands for the one at
which the reader reaches the scheduler."""
