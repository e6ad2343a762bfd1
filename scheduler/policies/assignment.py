"""Which waiting request goes to which worker, which model is loaded, which one has to go.

Pure: `assign` sees a snapshot and returns actions; nothing here knows sockets, clocks or bodies.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

OVERTAKEN = 3.0
"""Seconds for which requests that a replica can take go first where another request needs it to
end: exchanging two models takes about as long as some answers."""


class WorkerState(StrEnum):
    """The scheduler's view of a worker. `scheduler.fleet.Worker` holds the transitions."""

    BLANK = "blank"
    """Has no model."""
    LOADING = "loading"
    """Was told to load one."""
    READY = "ready"
    """Serves one."""
    DRAINING = "draining"
    """Finishes what it has and gets nothing new."""
    ENDING = "ending"
    """Was told to exit, or is being killed; a blank one follows it."""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as the policy sees it."""

    id: str
    state: WorkerState
    digest: str | None = None
    context_length: int = 0
    free_slots: int = 0
    running: int = 0
    """Requests that it works on."""
    last_used: float = 0.0
    """Any clock that grows; the least value was used least recently."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A waiting request as the policy sees it. The order of demands is the order of turns."""

    id: tuple[str, int]
    digest: str
    context_length: int
    """Context that a replica needs to serve it."""
    waited: float = 0.0
    """Seconds since its arrival."""


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


@dataclass(frozen=True, slots=True)
class EndReplica:
    """Have the idle worker exit, to make room."""

    worker: str
    reason: str


Action = Dispatch | LoadModel | EndReplica


def assign(demands: list[Demand], workers: list[WorkerView], departed: int = 0) -> list[Action]:
    """The actions that bring the waiting requests forward now.

    `departed` workers have exited just now, and the blank ones that follow them are not here yet.

    - A request goes to a ready replica of its model with a free slot and enough context.
    - A model has one replica. One that is too small for a request is ended once it is idle, and
      its successor is made large enough for all that wait; streams are never reloaded beneath.
      So that it becomes idle, it gets nothing new once that request has waited for `OVERTAKEN`.
    - A model without a replica is loaded by a blank worker; where none is left, the idle replica
      used least recently that nobody waits for makes room.
    - Where others wait for all of them, a request that has waited for `OVERTAKEN` has one make
      room nevertheless, as soon as it is idle: nobody behind it is sent there before.
    """
    actions: list[Action] = []
    free_slots = {worker.id: worker.free_slots for worker in workers}
    blank = [worker.id for worker in workers if worker.state is WorkerState.BLANK]
    wanted = Counter(demand.digest for demand in demands)
    # A worker that exits comes back blank: what it will hold need not be evicted for.
    returning = departed + sum(worker.state is WorkerState.ENDING for worker in workers)
    evictable = sorted(
        (
            worker
            for worker in workers
            if worker.state is WorkerState.READY
            and not worker.running
            and not wanted[worker.digest or ""]
        ),
        key=lambda worker: worker.last_used,
        reverse=True,
    )
    replicas: dict[str, WorkerView] = {
        worker.digest: worker
        # The one that is ready counts where a restart of the scheduler has led to two.
        for state in (WorkerState.LOADING, WorkerState.READY)
        for worker in workers
        if worker.digest and worker.state is state
    }
    largest: dict[str, int] = {}
    for demand in demands:
        largest[demand.digest] = max(largest.get(demand.digest, 0), demand.context_length)
    settled: set[str] = set()
    """Models whose next step is decided: nothing else is done about them now."""

    def untouched(replica: WorkerView) -> bool:
        return not replica.running and free_slots[replica.id] == replica.free_slots

    for demand in demands:
        if demand.digest in settled:
            continue
        replica = replicas.get(demand.digest)
        if replica and demand.context_length <= replica.context_length:
            if free_slots[replica.id] > 0:
                free_slots[replica.id] -= 1
                actions.append(Dispatch(demand.id, replica.id))
            else:
                settled.add(demand.digest)
            continue
        if replica:
            if replica.state is WorkerState.READY and untouched(replica):
                settled.add(demand.digest)
                actions.append(EndReplica(replica.id, "a request needs a larger context"))
            elif demand.waited >= OVERTAKEN:
                settled.add(demand.digest)
            continue
        settled.add(demand.digest)
        if blank:
            worker = blank.pop(0)
            actions.append(LoadModel(worker, demand.digest, largest[demand.digest]))
        elif returning > 0:
            returning -= 1
        elif evictable:
            evicted = evictable.pop()
            settled.add(evicted.digest or "")
            actions.append(EndReplica(evicted.id, "another model needs its worker"))
        elif demand.waited >= OVERTAKEN:
            claimable = [
                replica
                for digest, replica in replicas.items()
                if digest not in settled and replica.state is WorkerState.READY
            ]
            if not claimable:
                continue
            # The one with the least to do, which stays the same one until it is idle: it gets
            # nothing new, so only a replica that has even less to do can take its place.
            claimed = min(
                claimable,
                key=lambda replica: (
                    not untouched(replica),
                    replica.running + replica.free_slots - free_slots[replica.id],
                    replica.last_used,
                ),
            )
            settled.add(claimed.digest or "")
            if untouched(claimed):
                actions.append(EndReplica(claimed.id, "a model that has waited needs its worker"))
    return actions
