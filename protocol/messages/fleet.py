"""Everyone with the scheduler: who is there, whether it lives, what it holds.

A peer says `Hello` before anything else, and again whenever the scheduler's boot id changes or it
is asked `WhoAreYou`: ZeroMQ reconnects in silence, so a restarted scheduler would otherwise hear
from peers that it knows nothing about.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from ..recent import MOST_PREFIXES
from .failure import Failure
from .fields import Attempt, Count, Digest, Endpoint, Flag, Incarnation, Label, RequestId


class Role(StrEnum):
    """What kind of process a peer of the scheduler is."""

    FRONTEND = "frontend"
    WORKER = "worker"


class WorkerPhase(StrEnum):
    """Where a worker is in its one life: blank → loading → ready → (exit).

    While it tells of devices, or of what a model takes, it is loading as well.
    """

    BLANK = "blank"
    LOADING = "loading"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Names one process beyond the reuse of its pid, and tells whether a pidfd can watch it."""

    pid: Count
    start_time: Count
    """Clock ticks after the host's boot at which the process started; 0 where unknown."""
    pid_namespace: Label
    host_boot_id: Label


@dataclass(frozen=True, slots=True)
class Placed:
    """What of a replica lies on one device."""

    device: Label
    """As its share named it; `CPU` for the host's memory."""
    size: Count
    """Bytes."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The replica that a worker holds."""

    name: Label
    digest: Digest
    context_length: Count
    """Tokens of context that each slot has."""
    slots: Count
    """Requests that the worker takes at a time."""
    size: Count
    """Bytes of memory that the replica takes in all."""
    size_vram: Count
    """Bytes of `size` that lie on accelerators."""
    placed: list[Placed] = field(default_factory=list[Placed])
    """`size` by device."""
    resident: Count = 0
    """Bytes by which the process's own memory grew: without the mapped file, whose pages it shares
    with all others, and without what lies on accelerators."""


@dataclass(frozen=True, slots=True)
class RequestReport:
    """A request that a peer has in flight, told to a scheduler that may not know of it."""

    request: RequestId
    attempt: Attempt
    frontend: Incarnation
    """The frontend that owns it."""
    worker: Incarnation | None = None
    """The worker that runs it; None while it waits."""
    suspect: Flag = False
    """Whether it came to the worker as a suspect and is not cleared."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A peer's first message to a scheduler: all that it must know of the peer."""

    version: Count
    role: Role
    incarnation: Incarnation
    process: ProcessIdentity
    endpoint: Endpoint | None = None
    """Where a frontend takes token chunks."""
    phase: WorkerPhase | None = None
    model: LoadedModel | None = None
    requests: list[RequestReport] = field(default_factory=list[RequestReport])
    prefixes: Annotated[list[bytes], Field(max_length=MOST_PREFIXES)] = field(
        default_factory=list[bytes]
    )
    """What a worker has read lately: hashes of `Generate.prefix`, the least recent one first."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The scheduler's answer to a `Hello` that it cannot accept, such as one of another version."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class WhoAreYou:
    """The scheduler heard from a peer that it does not know."""

    boot_id: Incarnation


@dataclass(frozen=True, slots=True)
class SchedulerHeartbeat:
    """Answers a `Hello`, then goes to every peer each second."""

    boot_id: Incarnation
    """Another one than before means another scheduler, which knows nothing: say `Hello`."""


@dataclass(frozen=True, slots=True)
class PeerHeartbeat:
    """A peer's sign of life, each second."""

    steps: Count = 0
    """Engine steps so far: work in flight without a change here is a hang."""
    in_flight: Count = 0


MESSAGES = (Hello, Refused, WhoAreYou, SchedulerHeartbeat, PeerHeartbeat)
