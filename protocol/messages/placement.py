"""The scheduler with workers: which model a worker has, and when its life ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from .failure import Failure
from .fields import Attempt, Count, Digest, Label, Number, RequestId
from .fleet import LoadedModel
from .library import ModelFacts


class CacheType(StrEnum):
    """How keys and values are stored in the KV cache."""

    F16 = "f16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"


class FlashAttention(StrEnum):
    """Whether attention is computed without its whole matrix in memory."""

    AUTO = "auto"
    """Where the model and the device can."""
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a model on one device."""

    device: Label
    """The device's name."""
    id: Label
    """Its driver's name for it; empty where it has none."""
    backend: Label
    portion: Number
    """How much of what is offloaded lies there, in proportion to the other shares."""


@dataclass(frozen=True, slots=True)
class Load:
    """To a blank worker: become a replica of this model."""

    model: ModelFacts
    context_length: Count
    """Tokens of context for each slot."""
    threads: Count
    parallel: Count = 0
    """Requests to take at a time; 0 for as many as memory suggests."""
    slot_memory: Count = 0
    """Bytes that the KV cache of all slots may take where `parallel` is 0; 0 for a share of what is
    free."""
    cache_memory: Count = 0
    """Bytes in which finished sequences are kept for requests that begin like them."""
    batch: Count = 512
    """Most tokens that one engine step computes."""
    cache_type: CacheType = CacheType.F16
    flash_attention: FlashAttention = FlashAttention.AUTO
    shares: list[Share] = field(default_factory=list[Share])
    """The devices that it is given, the main one first; empty for the CPU alone."""
    layers: Count = 0
    """Layers that lie on them; the others stay on the CPU."""


@dataclass(frozen=True, slots=True)
class SetThreads:
    """To a replica: compute with so many threads from the next step on."""

    threads: Count


@dataclass(frozen=True, slots=True)
class Loaded:
    """The worker is ready for requests."""

    model: LoadedModel
    duration: Count
    """Nanoseconds that loading took."""


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The model could not be loaded. The scheduler answers with `Unload`, and the worker exits."""

    digest: Digest
    failure: Failure


@dataclass(frozen=True, slots=True)
class Unload:
    """To a worker: exit, which gives all memory back. Its process manager starts a blank one."""

    reason: Label


class Outcome(StrEnum):
    """How a request left a worker."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Released:
    """From a worker: a request's slot is free again."""

    request: RequestId
    attempt: Attempt
    outcome: Outcome
    tokens: Count
    """Tokens generated, for accounting."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """From a worker: a suspect got a token beyond those that it came with.

    It has passed the step at which its earlier attempt died, and is a request like any other.
    """

    request: RequestId
    attempt: Attempt


MESSAGES = (Load, SetThreads, Loaded, LoadFailed, Unload, Released, Cleared)
