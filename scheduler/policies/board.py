"""What the policies know, indexed so that a decision looks only at what has changed.

The board is told of every worker, request and device as it comes, changes and goes. It knows which
models something has changed for since the last look, and `decide` looks at no others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...protocol.limits import NO_LIMITS, ModelLimits
from ...protocol.messages.devices import DeviceKind
from .placement import Placement, Wishes, place
from .resources import DeviceView, Footprint
from .routing import PrefixIndex
from .views import Demand, WorkerState, WorkerView

RequestKey = tuple[str, int]
"""Request and attempt."""

_MOST_IDEALS = 4096
"""Placements that are remembered: whoever asks for ever new contexts must not fill the memory."""

Footprints = Callable[[str, int], Footprint | None]
"""What a replica of a model, by digest, takes with so much context; None while that is measured."""


class Queue:
    """The requests that wait for one model."""

    def __init__(self) -> None:
        self.demands: dict[RequestKey, Demand] = {}
        """In the order of arrival."""
        self.preloads = 0
        self._contexts: Counter[int] = Counter()

    def add(self, demand: Demand) -> None:
        """A request comes."""
        self.demands[demand.id] = demand
        self.preloads += demand.preload
        self._contexts[demand.context_length] += 1

    def remove(self, demand: Demand) -> None:
        """A request that is here goes."""
        del self.demands[demand.id]
        self.preloads -= demand.preload
        self._contexts[demand.context_length] -= 1
        if not self._contexts[demand.context_length]:
            del self._contexts[demand.context_length]

    @property
    def first(self) -> Demand:
        """The one that came first."""
        return next(iter(self.demands.values()))

    @property
    def largest(self) -> int:
        """The largest context that any of them needs."""
        return max(self._contexts)

    @property
    def requests(self) -> int:
        """How many of them want an answer."""
        return len(self.demands) - self.preloads


class Turns(Protocol):
    """In which order requests are served."""

    def waiting_for(self, digest: str) -> Iterable[RequestKey]:
        """The requests for one model. Some may be unknown to the board."""
        ...

    def models(self) -> Iterable[str]:
        """The models that somebody waits for, in the order of whose turn it is."""
        ...


@dataclass(slots=True)
class Claim:
    """Replicas that get nothing new until they are idle and end, for the sake of one model."""

    workers: set[str]
    devices: frozenset[str]
    """Where it is going to lie: nobody else is placed there meanwhile."""
    reason: str = ""
    """Why they have to go, for the log."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for all models. Sizes in bytes."""

    cores: int = 1
    most_threads: int = 1
    reserve: int = 0
    """Kept free on each GPU."""
    spread: bool = False
    """Whether each model lies on all GPUs of a backend."""


def _no_limits(digest: str) -> ModelLimits:
    return NO_LIMITS


def _all_threads(digest: str) -> int:
    return 1024


@dataclass(slots=True)
class Board:
    """State of the fleet as the policies see it."""

    footprints: Footprints
    rules: Rules = field(default_factory=Rules)
    limits: Callable[[str], ModelLimits] = _no_limits
    """What is set for a model, by digest."""
    most_threads: Callable[[str], int] = _all_threads
    """Threads that a model may have, by digest, beside what `rules` say."""
    departed: int = 0
    """Workers that have exited just now, and whose successors are not here yet."""
    turns: Turns | None = None
    """None for the order of arrival."""

    queues: dict[str, Queue] = field(default_factory=dict[str, Queue])
    workers: dict[str, WorkerView] = field(default_factory=dict[str, WorkerView])
    replicas: dict[str, dict[str, WorkerView]] = field(
        default_factory=dict[str, dict[str, WorkerView]]
    )
    """By model: those that load or serve it."""
    elsewhere: dict[str, None] = field(default_factory=dict[str, None])
    """Blank workers of other hosts."""
    blank: dict[str, None] = field(default_factory=dict[str, None])
    idle: dict[str, None] = field(default_factory=dict[str, None])
    """Ready and without a request."""
    ending: dict[str, None] = field(default_factory=dict[str, None])
    computing: dict[str, None] = field(default_factory=dict[str, None])
    """Those that compute on the processor's cores."""
    devices: dict[str, DeviceView] = field(default_factory=dict[str, DeviceView])
    busy: Counter[str] = field(default_factory=Counter[str])
    """Replicas at work on each device."""
    claims: dict[str, Claim] = field(default_factory=dict[str, Claim])
    """By the model that they are for."""
    claimed: dict[str, str] = field(default_factory=dict[str, str])
    """The model that each claimed worker gives way to."""
    standing: dict[str, int] = field(default_factory=dict[str, int])
    """Models that are to be loaded although nobody asks for them, each with its context: limits
    say so."""
    stood: dict[str, float] = field(default_factory=dict[str, float])
    """When each of them was last loaded for that reason."""
    prefixes: PrefixIndex = field(default_factory=PrefixIndex)
    starved: set[str] = field(default_factory=set[str])
    """Models that somebody waits for in vain until there is more room."""
    cores_changed: bool = False
    """Whether somebody began or ceased to compute on the cores since the last look."""

    _demands: dict[RequestKey, Demand] = field(default_factory=dict[RequestKey, Demand])
    _taken: Counter[str] = field(default_factory=Counter[str])
    _emptied: dict[str, int] = field(default_factory=dict[str, int])
    _emptied_known: bool = False
    _changed: set[str] = field(default_factory=set[str])
    _room: bool = False
    """Whether there is more room than at the last look."""
    _ideals: dict[tuple[object, ...], Placement | None] = field(
        default_factory=dict[tuple[object, ...], "Placement | None"]
    )

    # Requests

    def add(self, demand: Demand) -> None:
        """A request waits."""
        self.remove(demand.id)
        self._demands[demand.id] = demand
        self.queues.setdefault(demand.digest, Queue()).add(demand)
        self._changed.add(demand.digest)

    def remove(self, key: RequestKey) -> None:
        """A request waits no more; no matter if it did not."""
        demand = self._demands.pop(key, None)
        if demand is None:
            return
        queue = self.queues[demand.digest]
        queue.remove(demand)
        if not queue.demands:
            del self.queues[demand.digest]
            self.starved.discard(demand.digest)
            self.unclaim(demand.digest)
            # Its idle replicas may make room for others now.
            self._room = True

    def waiting_for(self, digest: str) -> Iterator[Demand]:
        """The requests for a model, in the order of turns."""
        queue = self.queues[digest]
        if self.turns is None:
            yield from queue.demands.values()
            return
        for key in self.turns.waiting_for(digest):
            if demand := queue.demands.get(key):
                yield demand

    def ranks(self) -> dict[str, int]:
        """The models that somebody waits for, each with its place in the order of turns."""
        if self.turns is not None:
            return {digest: place for place, digest in enumerate(self.turns.models())}
        models = sorted(self.queues, key=lambda digest: self.queues[digest].first.arrival)
        return {digest: place for place, digest in enumerate(models)}

    # Workers

    def update(self, worker: WorkerView) -> None:
        """A worker has come, or is not what it was."""
        before = self.workers.get(worker.id)
        if before == worker:
            return
        if before:
            self._take_out(before)
        self._put_in(worker)
        digest = worker.digest
        if digest is not None and digest in self.queues:
            self._changed.add(digest)
        if claimer := self.claimed.get(worker.id):
            self._changed.add(claimer)
        if worker.state is WorkerState.BLANK or (
            worker.id in self.idle and (before is None or before.running or not before.digest)
        ):
            self._room = True
        if worker.cores or (before is not None and before.cores):
            self.cores_changed = True

    def gone(self, worker_id: str) -> None:
        """A worker has exited."""
        worker = self.workers.get(worker_id)
        if worker is None:
            return
        self._take_out(worker)
        del self.workers[worker_id]
        self.prefixes.forget(worker_id)
        if claimer := self.claimed.pop(worker_id, None):
            claim = self.claims[claimer]
            claim.workers.discard(worker_id)
        if worker.digest is not None and worker.digest in self.queues:
            self._changed.add(worker.digest)
        self._room = True
        self.cores_changed = self.cores_changed or worker.cores

    def _take_out(self, worker: WorkerView) -> None:
        for index in (self.blank, self.elsewhere, self.idle, self.ending, self.computing):
            index.pop(worker.id, None)
        if worker.digest is not None and (of_model := self.replicas.get(worker.digest)):
            of_model.pop(worker.id, None)
            if not of_model:
                del self.replicas[worker.digest]
        self._count_memory(worker, -1)

    def _put_in(self, worker: WorkerView) -> None:
        self.workers[worker.id] = worker
        match worker.state:
            case WorkerState.BLANK:
                (self.elsewhere if worker.remote else self.blank)[worker.id] = None
            case WorkerState.ENDING | WorkerState.PROBING if not worker.remote:
                self.ending[worker.id] = None
            case WorkerState.LOADING | WorkerState.READY if worker.digest:
                self.replicas.setdefault(worker.digest, {})[worker.id] = worker
                # Its end would make no room here.
                idle = worker.state is WorkerState.READY and not worker.running
                if idle and not worker.remote:
                    self.idle[worker.id] = None
            case _:
                pass
        if worker.cores and worker.state in (WorkerState.READY, WorkerState.DRAINING):
            self.computing[worker.id] = None
        self._count_memory(worker, 1)

    def _count_memory(self, worker: WorkerView, sign: int) -> None:
        if worker.taken:
            self._emptied_known = False
        for device, size in worker.taken.items():
            self._taken[device] += sign * size
            if worker.running:
                self.busy[device] += sign

    # Devices

    def set_devices(self, devices: Iterable[DeviceView]) -> None:
        """What there is to compute on; what is free lacks all that was taken or promised."""
        fresh = {device.name: device for device in devices}
        if fresh == self.devices:
            return
        self.devices = fresh
        self._emptied_known = False
        self._room = True

    @property
    def has_gpu(self) -> bool:
        """Whether there is anything to offload to."""
        return any(device.kind is DeviceKind.GPU for device in self.devices.values())

    @property
    def emptied(self) -> dict[str, int]:
        """Bytes that would be free on each device if all replicas were gone."""
        if self._emptied_known:
            return self._emptied
        emptied: dict[str, int] = {}
        taken, reserve = self._taken, self.rules.reserve
        for name, device in self.devices.items():
            most = device.total - (reserve if device.kind is DeviceKind.GPU else 0)
            free = device.free + taken[name]
            emptied[name] = free if free < most else max(device.free, most)
        if emptied != self._emptied:
            self._emptied = emptied
            self._ideals.clear()
        self._emptied_known = True
        return emptied

    def ideal(self, digest: str, footprint: Footprint, wishes: Wishes) -> Placement | None:
        """Where a model would lie if it were alone; None where not even then."""
        emptied = self.emptied
        key = (digest, footprint, wishes)
        if key not in self._ideals:
            if len(self._ideals) > _MOST_IDEALS:
                self._ideals.clear()
            self._ideals[key] = place(list(self.devices.values()), footprint, wishes, free=emptied)
        return self._ideals[key]

    # Claims

    def claim(
        self, digest: str, workers: Sequence[str], devices: Iterable[str], reason: str = ""
    ) -> None:
        """Has these workers give way to a model."""
        self.unclaim(digest)
        self.claims[digest] = Claim(set(workers), frozenset(devices), reason)
        for worker in workers:
            self.claimed[worker] = digest

    def unclaim(self, digest: str) -> None:
        """The model has what it wanted, or wants it no more."""
        claim = self.claims.pop(digest, None)
        if claim is None:
            return
        for worker in claim.workers:
            self.claimed.pop(worker, None)
            if (view := self.workers.get(worker)) and view.digest in self.queues:
                self._changed.add(view.digest)
        self._room = True

    # What a look is about

    def touch(self, digests: Iterable[str] | None = None) -> None:
        """Has the next look see these models, or all: time alone changes some decisions."""
        self._changed.update(self.queues if digests is None else digests)

    def take_changed(self) -> set[str]:
        """The models that the next look is about; forgets them."""
        changed, self._changed = self._changed, set()
        if self._room:
            self._room = False
            changed |= self.starved
        return {digest for digest in changed if digest in self.queues}
