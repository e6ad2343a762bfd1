"""Texts to vectors, or to scores: submitted, placed and tried again as a generation is.

`Embed` has a body like `Generate`: the message is for the scheduler, the body (`EmbedBody`) for
the worker. There is one answer, `Embedded`, whose body holds the numbers. `Started`,
`Failed`, `Lost`, `Cancel` and `Released` are those of a generation. A frontend splits a long list
into several messages, so that one of them is a small job and its answer a small message.
"""

from __future__ import annotations

from dataclasses import dataclass

from .fields import (
    Attempt,
    Count,
    Digest,
    Endpoint,
    Flag,
    Incarnation,
    Label,
    Number,
    RequestId,
    TcpEndpoint,
    Text,
)
from .generation import Caller


@dataclass(frozen=True, slots=True)
class Embed:
    """Frontend → scheduler → worker: everything that placement needs to know."""

    request: RequestId
    attempt: Attempt
    model: Label
    """The model's canonical name, for people."""
    digest: Digest
    """What the name stood for when the request was accepted."""
    caller: Caller
    frontend: Incarnation
    reply_to: Endpoint
    """Where the worker connects to answer."""
    cost: Count
    """Estimated work, in tokens read."""
    keep_alive: Number | None = None
    """Seconds that the model stays after this request; negative for ever; None for the default."""
    context_length: Count | None = None
    """The context that the request asks for (`num_ctx`); None for the default."""
    num_gpu: Count | None = None
    """Layers to offload that the request asks for; None for as many as fit."""
    main_gpu: Count | None = None
    """The GPU that it prefers, counted from 0."""
    deadline: Number | None = None
    """Unix time after which nobody waits for the answer."""
    reply_to_tcp: TcpEndpoint | None = None
    """Where a worker of another host connects."""
    suspect: Flag = False
    """As `Generate` has it."""


@dataclass(frozen=True, slots=True)
class EmbedBody:
    """The body of `Embed`: what only the worker reads."""

    inputs: list[Text]
    first: Count = 0
    """Position of the first of `inputs` in the list that the client sent, for error messages."""
    query: Text | None = None
    """With it, each input is scored against it, and none is turned into a vector."""
    truncate: Flag = True
    """Whether an input that is too long loses its end."""
    normalize: Flag = True
    """Whether vectors get the length 1."""
    dimensions: Count | None = None
    """How many of a vector's numbers are wanted, from the first; None or 0 for all."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """Worker → frontend: the answer. Its body holds `count` × `dimension` numbers.

    They are little-endian 32-bit floats, one input's after the other's, in the order of the inputs.
    A score is a vector of one number.
    """

    request: RequestId
    attempt: Attempt
    count: Count
    dimension: Count
    prompt_eval_count: Count
    """Tokens that were read for all inputs."""


MESSAGES = (Embed, EmbedBody, Embedded)
