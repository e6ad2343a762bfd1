"""What the scheduler knows: workers, frontends, waiting requests. Soft state, all of it."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..protocol.lifecycle import Lifecycle
from ..protocol.messages.embedding import Embed
from ..protocol.messages.fleet import LoadedModel, ProcessIdentity
from ..protocol.messages.generation import Generate, Preload
from ..protocol.messages.library import ModelFacts
from ..protocol.messages.placement import Load
from .absences import Absences
from .policies.fairness import FairQueue
from .policies.loading import context_for
from .policies.views import WorkerState, WorkerView

RequestKey = tuple[str, int]
"""Request and attempt."""

RETURN_SECONDS = 5.0
"""How long the successor of a worker that exited is waited for before another replica has to go."""

WORKER = Lifecycle(
    "worker",
    {
        WorkerState.BLANK: {
            WorkerState.PROBING,
            WorkerState.LOADING,
            WorkerState.ENDING,
            WorkerState.GONE,
        },
        WorkerState.PROBING: {WorkerState.ENDING, WorkerState.GONE},
        WorkerState.LOADING: {WorkerState.READY, WorkerState.ENDING, WorkerState.GONE},
        WorkerState.READY: {WorkerState.DRAINING, WorkerState.ENDING, WorkerState.GONE},
        WorkerState.DRAINING: {WorkerState.ENDING, WorkerState.GONE},
        WorkerState.ENDING: {WorkerState.GONE},
        WorkerState.GONE: set[WorkerState](),
    },
    logging.getLogger(__name__),
)
"""A worker's life. From `LOADING` to its end it is a replica of one model."""


@dataclass(slots=True)
class Peer:
    """A process that said `Hello`."""

    id: str
    """Its incarnation, which is also its address."""
    process: ProcessIdentity
    pidfd: int | None
    heard: float
    """Monotonic time of its last message."""
    name: str = ""
    """What its supervisor calls it, the same over restarts."""
    remote: bool = field(default=False, kw_only=True)
    """Whether it joined from another host: no pidfd watches it, and no signal reaches it."""
    dead: bool = field(default=False, kw_only=True)
    """Whether its process has died, and only what it said before is still being read."""


@dataclass(slots=True)
class Frontend(Peer):
    """A frontend."""

    draining: bool = False
    in_flight: int = 0
    """Requests that it owned at its last heartbeat."""


@dataclass(slots=True)
class Worker(Peer):
    """A worker, in the one life that it has."""

    lacks: frozenset[str] = frozenset()
    """Models that its host is known not to have."""

    state: WorkerState = WorkerState.BLANK
    digest: str | None = None
    context_length: int = 0
    load: Load | None = None
    """With what it was told to load."""
    model: LoadedModel | None = None
    running: dict[RequestKey, str] = field(default_factory=dict[RequestKey, str])
    """The frontend of each request that was sent here and has not been released."""
    suspects: set[RequestKey] = field(default_factory=set[RequestKey])
    """Those of them that came as suspects and are not cleared."""
    taken: dict[str, int] = field(default_factory=dict[str, int])
    """Bytes that its model takes, or was promised, on each device."""
    num_gpu: int | None = None
    """Layers to offload that were asked for when it was loaded; None for as many as fit."""
    layers: int = 0
    """Layers that lie on accelerators."""
    all_layers: int = 0
    """Layers that its model has; 0 where that is not known."""
    cores: bool = False
    """Whether it computes on the processor's cores."""
    threads: int = 0
    """Threads that it was told to compute with."""
    most_threads: int = 1
    """Threads that it may be told."""
    ready_since: float = 0.0
    load_seconds: float = 0.0
    keep_alive: float = 0.0
    """What the last request asked for, in seconds; negative for ever."""
    last_used: float = 0.0
    """Monotonic time at which the worker last got or finished a request."""
    since: float = 0.0
    """Monotonic time at which the present state began."""
    steps: int = 0
    progressed: float = 0.0
    """Monotonic time at which `steps` last changed, or work first came in."""

    def enter(self, state: WorkerState, now: float) -> None:
        """The one way from a state to another; raises ValueError where `WORKER` has none."""
        self.state = WORKER.step(self.name or self.id, self.state, state)
        self.since = now

    def settle(self, model: LoadedModel) -> None:
        """What it has loaded takes what it says, whatever was promised to it."""
        if model.placed and not self.remote:
            self.taken = {part.device: part.size for part in model.placed}

    @property
    def devices(self) -> list[str]:
        """Names of the devices that hold a part of its model."""
        return sorted(name for name, size in self.taken.items() if size)

    def take(self, key: RequestKey, frontend: str, *, suspect: bool) -> None:
        """A request is sent here."""
        self.running[key] = frontend
        if suspect:
            self.suspects.add(key)

    def release(self, key: RequestKey) -> None:
        """A request has left."""
        self.running.pop(key, None)
        self.suspects.discard(key)

    def blames(self, key: RequestKey) -> bool:
        """Whether a death of this worker counts against a request that it runs: no other one there
        is as likely to have been the reason.
        """
        return self.suspects == {key} if self.suspects else len(self.running) == 1

    @property
    def expires(self) -> float:
        """Monotonic time at which an idle replica is unloaded; infinite for never."""
        return math.inf if self.keep_alive < 0 else self.last_used + self.keep_alive

    @property
    def view(self) -> WorkerView:
        """What the policies see."""
        slots = self.model.slots if self.model and self.state is WorkerState.READY else 0
        return WorkerView(
            id=self.id,
            state=self.state,
            digest=self.digest,
            context_length=self.context_length,
            free_slots=max(0, slots - len(self.running)),
            running=len(self.running),
            last_used=self.last_used,
            suspects=len(self.suspects),
            ready_since=self.ready_since,
            load_seconds=self.load_seconds,
            taken=self.taken,
            num_gpu=self.num_gpu,
            layers=self.layers,
            all_layers=self.all_layers,
            cores=self.cores,
            threads=self.threads,
            most_threads=self.most_threads,
            remote=self.remote,
            lacks=self.lacks,
        )


@dataclass(slots=True)
class Waiting:
    """A request that no worker has yet. A preload is one without a body and without an answer."""

    header: Generate | Embed | Preload
    frontend: str
    body: bytes = b""
    since: float = field(default_factory=time.monotonic)
    """Monotonic time of its arrival."""

    @property
    def key(self) -> RequestKey:
        """Request and attempt; a preload is never tried again."""
        attempt = 1 if isinstance(self.header, Preload) else self.header.attempt
        return self.header.request, attempt

    @property
    def suspect(self) -> bool:
        """Whether an earlier worker died with it."""
        return not isinstance(self.header, Preload) and self.header.suspect

    @property
    def is_preload(self) -> bool:
        """Whether it only wants the model to be ready."""
        return isinstance(self.header, Preload)

    @property
    def resumed(self) -> bool:
        """Whether it had its turn before, at a worker that died since."""
        return self.key[1] > 1

    @property
    def cost(self) -> int:
        """Estimated work in tokens."""
        return 0 if isinstance(self.header, Preload) else self.header.cost

    @property
    def deadline(self) -> float | None:
        """Unix time after which nobody waits for it."""
        return None if isinstance(self.header, Preload) else self.header.deadline


class Fleet:
    """Everything known, with the few questions that are asked of it.

    `weight_of` gives the weight of a caller's waiting requests.
    """

    def __init__(self, weight_of: Callable[[str], float] = lambda caller: 1.0) -> None:
        self.frontends: dict[str, Frontend] = {}
        self.workers: dict[str, Worker] = {}
        self.waiting: dict[RequestKey, Waiting] = {}
        """In the order of arrival. Changed by the three methods below alone."""
        self.queue = FairQueue(weight_of)
        """The same requests, in the order of turns."""
        self.on_left: Callable[[RequestKey], None] = lambda key: None
        """Hears of every request that waits no more."""
        self.facts: dict[str, ModelFacts] = {}
        """By digest, which they belong to for ever."""
        self.drained_devices: set[str] = set()
        """Names of the devices on which nothing is to be placed until an operator allows it."""
        self.absences = Absences()
        self._departures: deque[float] = deque()
        """When workers died whose successors have not come yet."""

    def forgive(self, seconds: float, moment: float) -> None:
        """Does not count a time, up to this moment, in which the scheduler itself heard nobody."""
        for peer in (*self.frontends.values(), *self.workers.values()):
            peer.heard = min(peer.heard + seconds, moment)
        for worker in self.workers.values():
            worker.since = min(worker.since + seconds, moment)
            worker.progressed = min(worker.progressed + seconds, moment)
        self._departures = deque(min(at + seconds, moment) for at in self._departures)

    def note_departure(self, moment: float) -> None:
        """A worker is gone; its process manager starts the next one."""
        self._departures.append(moment)

    def note_arrival(self) -> None:
        """A blank worker has come."""
        if self._departures:
            self._departures.popleft()

    def departed(self, moment: float) -> int:
        """Workers that are about to come back."""
        while self._departures and moment - self._departures[0] > RETURN_SECONDS:
            self._departures.popleft()
        return len(self._departures)

    def add_waiting(self, waiting: Waiting) -> None:
        """Queues a request."""
        header = waiting.header
        self.waiting[waiting.key] = waiting
        self.queue.add(
            waiting.key,
            header.caller.subject,
            header.digest,
            waiting.cost,
            len(waiting.body),
            resumed=waiting.resumed,
        )

    def remove_waiting(self, key: RequestKey) -> Waiting | None:
        """Takes a request out of the queue that is not served: it costs its caller nothing."""
        self.queue.remove(key)
        self.on_left(key)
        return self.waiting.pop(key, None)

    def serve_waiting(self, key: RequestKey) -> Waiting:
        """Takes a request out of the queue that a worker gets now, and charges its caller."""
        self.queue.take(key)
        self.on_left(key)
        return self.waiting.pop(key)

    def to_refuse(self, most: int, most_bytes: int) -> tuple[Waiting, float] | None:
        """What has to go where more waits than that, and for how many seconds the same caller's
        oldest request has waited by now; None where there is room.
        """
        ticket = self.queue.to_refuse(most, most_bytes)
        if ticket is None:
            return None
        oldest = self.queue.oldest_of(ticket.caller) or ticket
        return self.waiting[ticket.key], now() - self.waiting[oldest.key].since

    def waiting_for(self, digest: str) -> list[Waiting]:
        """All that waits for one model, in the order of turns."""
        return [self.waiting[ticket.key] for ticket in self.queue.waiting_for(digest)]

    def waiting_of(self, frontend: str) -> list[Waiting]:
        """All that waits on behalf of one frontend."""
        return [waiting for waiting in self.waiting.values() if waiting.frontend == frontend]

    def runs(self, key: RequestKey) -> Worker | None:
        """The worker that has this request."""
        return next((worker for worker in self.workers.values() if key in worker.running), None)

    def replicas(self, digest: str) -> Iterator[Worker]:
        """The workers that hold or load this model and take requests for it."""
        states = (WorkerState.LOADING, WorkerState.READY)
        return (
            worker
            for worker in self.workers.values()
            if worker.digest == digest and worker.state in states
        )

    def context_needed(self, waiting: Waiting, default: int) -> int:
        """Tokens of context that a new replica for this request gets."""
        header = waiting.header
        return context_for(self.facts[header.digest], header.context_length, default)


def now() -> float:
    """The clock of all soft state: monotonic seconds."""
    return time.monotonic()
