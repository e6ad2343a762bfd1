"""An operator with the scheduler: which processes there are, and which of them are to leave.

Asked at a socket of its own below `PRONK_STATE`: whoever can open it owns the server. Every
question can be asked again without harm. `CallFailed` answers them, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from .fields import Count, Flag, Incarnation, Label, Number, RequestId
from .fleet import Role


@dataclass(frozen=True, slots=True)
class ListProcesses:
    """Which frontends and workers are there?"""

    call: RequestId


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """A frontend or a worker as the scheduler sees it."""

    name: Label
    """What its supervisor calls it; its incarnation where it has no name."""
    incarnation: Incarnation
    role: Role
    pid: Count
    state: Label
    requests: Count
    """Requests that it works on: a frontend's include those that wait."""
    model: Label = ""
    devices: list[Label] = field(default_factory=list[Label])
    """The devices that hold a part of its model."""


@dataclass(frozen=True, slots=True)
class ProcessList:
    """The answer to `ListProcesses`, ordered by name."""

    call: RequestId
    processes: list[ProcessEntry]
    waiting: Count
    """Requests that no worker has yet."""
    drained_devices: list[Label]
    complete: Flag
    """Whether everybody had the time to announce themselves to this scheduler: before, a process
    that is missing may be there all the same."""


class DrainKind(StrEnum):
    """What an operator can have drained."""

    WORKER = "worker"
    DEVICE = "device"
    """All workers that hold a part of it; nothing is placed there until that is undone."""
    FRONTEND = "frontend"


@dataclass(frozen=True, slots=True)
class Drain:
    """Have these processes finish what they have and exit."""

    call: RequestId
    kind: DrainKind
    name: Label
    """A process's name or incarnation, or a device's name."""
    timeout: Number | None = None
    """Seconds after which what is left is moved elsewhere; None for what the processes' own
    settings say."""
    undo: Flag = False
    """Of a device: let models be placed there again."""


@dataclass(frozen=True, slots=True)
class DrainBegun:
    """The answer to `Drain`: who is leaving. It is done when `ProcessList` has none of them."""

    call: RequestId
    processes: list[ProcessEntry]


MESSAGES = (ListProcesses, ProcessList, Drain, DrainBegun)
