"""The kinds of values that message fields hold, each with its bound.

Strict, so that a peer's `"1"` is no number; bounded, so that no peer can make another one store
more than the message's own limit allows.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict

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
