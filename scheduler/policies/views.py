"""What policies see of workers and requests, and what they can decide. Plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ...protocol.messages.placement import Share


class WorkerState(StrEnum):
    """The scheduler's view of a worker. `scheduler.fleet.Worker` holds the transitions."""

    BLANK = "blank"
    """Has no model."""
    PROBING = "probing"
    """Tells of devices, or what a model takes, and exits after it; a blank one follows it."""
    LOADING = "loading"
    """Was told to load one."""
    READY = "ready"
    """Serves one."""
    DRAINING = "draining"
    """Finishes what it has and gets nothing new."""
    ENDING = "ending"
    """Was told to exit, or is being killed; a blank one follows it."""
    GONE = "gone"
    """Its process has ended."""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as the policies see it. Times are of any clock that grows, in seconds."""

    id: str
    state: WorkerState
    digest: str | None = None
    context_length: int = 0
    free_slots: int = 0
    running: int = 0
    """Requests that it works on."""
    last_used: float = 0.0
    """The least value was used least recently."""
    suspects: int = 0
    """Requests among them that may kill it, and have not been cleared."""
    ready_since: float = -math.inf
    load_seconds: float = 0.0
    """What loading it took."""
    taken: Mapping[str, int] = field(default_factory=dict[str, int])
    """Bytes that it takes, or was promised, on each device."""
    num_gpu: int | None = None
    """Layers to offload that its first request asked for; None for as many as fit."""
    layers: int = 0
    """Layers that lie on accelerators."""
    all_layers: int = 0
    """Layers that its model has; 0 where that is not known."""
    cores: bool = False
    """Whether it computes on the processor's cores."""
    threads: int = 0
    """Threads that it was told to compute with."""
    most_threads: int = 1
    """Threads that it may have."""
    remote: bool = False
    """Whether it is on another host: it takes nothing of this one's devices, and its end gives none
    of it back."""
    lacks: frozenset[str] = frozenset()
    """Models that it cannot load, because its host does not have them."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A waiting request as the policies see it."""

    id: tuple[str, int]
    digest: str
    context_length: int
    """Context that a replica needs to serve it."""
    since: float = 0.0
    """When it came."""
    arrival: int = 0
    """Its number in the order of arrival."""
    suspect: bool = False
    """Whether it may kill its worker: nothing joins it there before it is cleared."""
    preload: bool = False
    """Whether it only wants the model to be ready, and takes no slot."""
    cost: int = 0
    """Tokens to read and to generate, estimated."""
    prefix: tuple[bytes, ...] = ()
    """Hash chain over its parts; see `Generate.prefix`."""
    num_gpu: int | None = None
    """Layers to offload; None for as many as fit."""
    main_gpu: int | None = None
    """Which GPU to prefer, counted from 0."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send the request to the worker."""

    demand: tuple[str, int]
    worker: str


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Have the blank worker load the model."""

    worker: str
    digest: str
    context_length: int
    shares: tuple[Share, ...] = ()
    """The devices that it is given; none for the CPU alone."""
    layers: int = 0
    """Layers that lie on them."""
    slots: int = 0
    """Slots that there is room for; 0 for as many as the worker finds room for."""
    threads: int = 1
    num_gpu: int | None = field(default=None, compare=False)
    all_layers: int = field(default=0, compare=False)
    taken: Mapping[str, int] = field(default_factory=dict[str, int], compare=False)
    """Bytes that are promised to it on each device."""
    cores: bool = field(default=True, compare=False)


@dataclass(frozen=True, slots=True)
class EndReplica:
    """Have the idle worker exit."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class SetThreads:
    """Have the replica compute with so many threads."""

    worker: str
    threads: int


@dataclass(frozen=True, slots=True)
class Fail:
    """Answer all requests for the model that need at least this context: it is too large."""

    digest: str
    context_length: int
    reason: str


Action = Dispatch | LoadModel | EndReplica | SetThreads | Fail
