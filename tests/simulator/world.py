"""A host that does not exist: its devices, workers and requests, and a clock that jumps.

Only the policies are real: the board, the fair waiting room, and what they decide. How long a thing
takes is a simple model of it, the same for every policy that is compared:

- Loading takes the time to read the weights, and a worker that exits is back a moment later.
- A prompt is read and an answer is generated at the model's speed; each request beside it in the
  batch makes it slower by a twentieth, and replicas that work on one device share it.
- What a worker has read of a prompt it need not read again.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from pronk.protocol.limits import NO_LIMITS, ModelLimits
from pronk.protocol.messages.devices import DeviceKind
from pronk.protocol.recent import Recent
from pronk.scheduler.policies.assignment import decide
from pronk.scheduler.policies.board import Board, Rules
from pronk.scheduler.policies.fairness import FairQueue
from pronk.scheduler.policies.resources import DeviceView, Footprint
from pronk.scheduler.policies.turns import FairTurns
from pronk.scheduler.policies.views import (
    Action,
    Demand,
    Dispatch,
    EndReplica,
    Fail,
    LoadModel,
    SetThreads,
    WorkerState,
    WorkerView,
)

GIB = 2**30
BACK = 0.3
"""Seconds until the successor of a worker that exits is there."""
READ_SPEED = 16
"""Tokens of a prompt that are read in the time of one that is generated."""
CROWDING = 0.05


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the library."""

    digest: str
    weights: int
    """Bytes."""
    slot: int = GIB // 4
    slots: int = 8
    layers: int = 33
    speed: float = 50.0
    """Tokens that are generated in a second for a request that is alone."""
    load_speed: int = 2 * GIB
    """Bytes of weights that are loaded in a second."""
    limits: ModelLimits = NO_LIMITS

    @property
    def footprint(self) -> Footprint:
        return Footprint(self.weights, self.slot, self.slots, GIB // 8, self.layers)

    @property
    def load_seconds(self) -> float:
        return 0.5 + self.weights / self.load_speed


@dataclass(slots=True)
class Request:
    """Something that somebody asks."""

    key: tuple[str, int]
    caller: str
    model: Model
    arrived: float
    prompt: int
    answer: int
    """Tokens."""
    context: int = 4096
    chain: tuple[bytes, ...] = ()
    began: float | None = None
    failed: bool = False


@dataclass(slots=True)
class Worker:
    """A worker's process."""

    view: WorkerView
    running: dict[tuple[str, int], Request] = field(default_factory=dict[tuple[str, int], Request])
    read: Recent = field(default_factory=Recent)
    life: int = 0
    """Counts the processes that had this place."""


@dataclass(slots=True)
class Tally:
    """What happened."""

    requests: list[Request] = field(default_factory=list[Request])
    loads: Counter[str] = field(default_factory=Counter[str])
    load_times: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    evictions: int = 0
    most_replicas: Counter[str] = field(default_factory=Counter[str])
    busy_seconds: float = 0.0
    """Of all GPUs together."""
    read_again: int = 0
    saved: int = 0
    """Tokens of prompts that were and were not read."""
    decisions: list[float] = field(default_factory=list[float])
    """Seconds that each look took, the board's account of the event included."""


class World:
    """A host at work. `check` is called with every action before it is carried out."""

    def __init__(
        self,
        devices: Sequence[DeviceView],
        models: Sequence[Model],
        workers: int,
        *,
        seed: int = 0,
        keep_alive: float = 300.0,
        rules: Rules | None = None,
        check: Callable[[World, Action], None] = lambda world, action: None,
    ) -> None:
        self.now = 0.0
        self.models = {model.digest: model for model in models}
        self.tally = Tally()
        self.random = random.Random(seed)
        self.devices = {device.name: device for device in devices}
        self.workers: dict[str, Worker] = {}
        self.waiting: dict[tuple[str, int], Request] = {}
        self.queue = FairQueue()
        self._keep_alive = keep_alive
        self._check = check
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._busy: Counter[str] = Counter()
        """Replicas at work on each device."""
        self._slots: dict[str, int] = {}
        self.board = Board(
            lambda digest, context: self.models[digest].footprint,
            rules or Rules(),
            limits=lambda digest: self.models[digest].limits,
            turns=FairTurns(self.queue),
        )
        self.board.set_devices(self.devices.values())
        for index in range(workers):
            self._start(f"w{index}", 0)
        self.at(1.0, self._tick)

    # Time

    def at(self, moment: float, event: Callable[[], None]) -> None:
        """Has something happen."""
        heapq.heappush(self._events, (moment, next(self._numbers), event))

    def run(self, seconds: float) -> Tally:
        """Lets time pass."""
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            moment, _, event = heapq.heappop(self._events)
            self._pass(moment)
            event()
        self._pass(end)
        return self.tally

    def _pass(self, moment: float) -> None:
        busy = sum(
            1
            for device, replicas in self._busy.items()
            if replicas and self.devices[device].kind is DeviceKind.GPU
        )
        self.tally.busy_seconds += busy * (moment - self.now)
        self.now = moment

    # Requests

    def ask(
        self,
        caller: str,
        digest: str,
        prompt: int = 200,
        answer: int = 200,
        *,
        context: int = 4096,
        chain: tuple[bytes, ...] = (),
    ) -> Request:
        """Somebody asks now."""
        number = next(self._numbers)
        key = (f"{number:032x}", 1)
        model = self.models[digest]
        request = Request(key, caller, model, self.now, prompt, answer, context, chain)
        self.tally.requests.append(request)
        self.waiting[key] = request
        self.queue.add(key, caller, digest, prompt + answer, 0)
        demand = Demand(key, digest, context, self.now, number, cost=prompt + answer, prefix=chain)
        self._decide(lambda: self.board.add(demand))
        return request

    def _tick(self) -> None:
        self.at(self.now + 1.0, self._tick)
        for worker in list(self.workers.values()):
            view = worker.view
            over = view.last_used + self._keep_alive <= self.now
            if view.state is WorkerState.READY and not view.running and over:
                self._apply(EndReplica(view.id, "keep_alive is over"))
        self._decide(lambda: None, everything=True)

    def _decide(self, event: Callable[[], None], *, everything: bool = False) -> None:
        began = time.perf_counter()
        event()
        actions = decide(self.board, self.now, everything=everything)
        self.tally.decisions.append(time.perf_counter() - began)
        for action in actions:
            self._check(self, action)
            self._apply(action)

    def _apply(self, action: Action) -> None:
        match action:
            case Dispatch(key, name):
                self._dispatch(key, self.workers[name])
            case LoadModel(name):
                self._load(self.workers[name], action)
            case EndReplica(name):
                self.tally.evictions += 1
                self._leave(self.workers[name])
            case SetThreads(name, threads):
                self._update(self.workers[name], threads=threads)
            case Fail(digest, context):
                for request in list(self.waiting.values()):
                    if request.model.digest == digest and request.context >= context:
                        request.failed = True
                        del self.waiting[request.key]
                        self.queue.remove(request.key)
                        self.board.remove(request.key)

    def _update(self, worker: Worker, **fields: object) -> None:
        worker.view = replace(worker.view, **fields)  # pyright: ignore[reportArgumentType]
        self.board.update(worker.view)

    def _dispatch(self, key: tuple[str, int], worker: Worker) -> None:
        request = self.waiting.pop(key)
        self.queue.take(key)
        self.board.remove(key)
        request.began = self.now
        links = len(request.chain)
        known = sum(1 for link in request.chain if link in worker.read)
        unread = request.prompt * (1 - known / links) if links else request.prompt
        self.tally.read_again += int(unread)
        self.tally.saved += request.prompt - int(unread)
        worker.read.add(request.chain)
        self.board.prefixes.note(worker.view.id, request.chain)
        model, beside = request.model, len(worker.running)
        if not beside:
            self._busy.update(worker.view.taken.keys())
        sharing = max((self._busy[device] for device in worker.view.taken), default=1)
        tokens = unread / READ_SPEED + request.answer * (1 + CROWDING * beside)
        worker.running[key] = request
        self._count(worker)
        life = worker.life
        self.at(self.now + tokens / model.speed * sharing, lambda: self._finish(worker, life, key))

    def _count(self, worker: Worker) -> None:
        slots = self._slots[worker.view.id]
        self._update(
            worker,
            free_slots=slots - len(worker.running),
            running=len(worker.running),
            last_used=self.now,
        )

    def _finish(self, worker: Worker, life: int, key: tuple[str, int]) -> None:
        if worker.life != life:
            return
        del worker.running[key]
        if not worker.running:
            self._busy.subtract(worker.view.taken.keys())
        self._decide(lambda: self._count(worker))

    # Workers

    def _start(self, name: str, life: int) -> None:
        self.workers[name] = Worker(WorkerView(name, WorkerState.BLANK), life=life)
        self._decide(lambda: self.board.update(self.workers[name].view))

    def _load(self, worker: Worker, action: LoadModel) -> None:
        model = self.models[action.digest]
        self._slots[action.worker] = action.slots or model.slots
        self._take(action.taken, 1)
        self._update(
            worker,
            state=WorkerState.LOADING,
            digest=action.digest,
            context_length=action.context_length,
            taken=dict(action.taken),
            layers=action.layers,
            all_layers=action.all_layers,
            cores=action.cores,
            threads=action.threads,
        )
        tally = self.tally
        tally.loads[action.digest] += 1
        tally.load_times.setdefault(action.digest, []).append(self.now)
        replicas = len(self.board.replicas[action.digest])
        tally.most_replicas[action.digest] = max(tally.most_replicas[action.digest], replicas)
        life = worker.life
        self.at(self.now + model.load_seconds, lambda: self._loaded(worker, life))

    def _loaded(self, worker: Worker, life: int) -> None:
        if worker.life != life:
            return
        model = self.models[worker.view.digest or ""]
        self._decide(
            lambda: self._update(
                worker,
                state=WorkerState.READY,
                free_slots=self._slots[worker.view.id],
                last_used=self.now,
                ready_since=self.now,
                load_seconds=model.load_seconds,
            )
        )

    def _leave(self, worker: Worker) -> None:
        assert not worker.running
        self._update(worker, state=WorkerState.ENDING, free_slots=0)
        self.at(self.now + BACK / 2, lambda: self._gone(worker))

    def _gone(self, worker: Worker) -> None:
        name = worker.view.id
        self._take(worker.view.taken, -1)
        self.board.departed += 1
        self._decide(lambda: self.board.gone(name))
        self.at(self.now + BACK / 2, lambda: self._back(name, worker.life + 1))

    def _back(self, name: str, life: int) -> None:
        self.board.departed -= 1
        self._start(name, life)

    def _take(self, taken: object, sign: int) -> None:
        assert isinstance(taken, dict)
        for device, size in taken.items():
            view = self.devices[device]
            self.devices[device] = replace(view, free=view.free - sign * size)
        self.board.set_devices(self.devices.values())


def gpus(number: int, memory: int = 24 * GIB, backend: str = "CUDA") -> list[DeviceView]:
    """As many equal GPUs."""
    return [
        DeviceView(f"{backend.lower()}{n}", DeviceKind.GPU, backend, memory, memory)
        for n in range(number)
    ]


def processors(memory: int = 256 * GIB) -> DeviceView:
    """The host's memory."""
    return DeviceView("CPU", DeviceKind.CPU, "CPU", memory, memory)
