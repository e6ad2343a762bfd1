"""Nobody waits for ever, however busy the others keep the workers: the policy in simulated time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from pronk.scheduler.policies.assignment import decide
from pronk.scheduler.policies.eviction import OVERTAKEN
from pronk.scheduler.policies.views import (
    Demand,
    Dispatch,
    EndReplica,
    Fail,
    LoadModel,
    SetThreads,
    WorkerState,
    WorkerView,
)
from support.policies import cpu, empty_board

A, B, C = "a" * 64, "b" * 64, "c" * 64
SMALL, LARGE = 4096, 8192
LONGEST = 20
"""Seconds that the longest answer takes."""
LOADING = 2
PATIENCE = 2 * LONGEST + OVERTAKEN + 2 * LOADING
"""Seconds within which a request has to be at work: those that run end, and those that came before
it, and a model is exchanged."""


@dataclass
class SimulatedWorker:
    name: str
    state: WorkerState = WorkerState.BLANK
    digest: str | None = None
    context: int = 0
    until: list[float] = field(default_factory=list[float])
    """When each of its requests ends."""
    changes: float = 0.0
    """When it is loaded, or is back as a blank one."""
    used: float = 0.0


class Host:
    """Workers with `slots` slots each, and the requests that wait for them, second by second."""

    def __init__(self, workers: int, slots: int, seed: int) -> None:
        self.slots = slots
        self.random = random.Random(seed)
        self.workers = [SimulatedWorker(f"w{index}") for index in range(workers)]
        self.waiting: dict[tuple[str, int], tuple[str, int, float]] = {}
        self.begun: dict[tuple[str, int], float] = {}
        self.now = 0.0
        self.board = empty_board()
        self.board.set_devices([cpu()])
        self._count = 0

    def ask(self, digest: str, context: int = SMALL) -> tuple[str, int]:
        self._count += 1
        key = (f"{self._count:032x}", 1)
        self.waiting[key] = (digest, context, self.now)
        self.board.add(Demand(key, digest, context, self.now, self._count))
        return key

    def flood(self, *digests: str) -> None:
        """Keeps as many requests waiting for each of these models as it has slots."""
        for digest in digests:
            while sum(d == digest for d, *_ in self.waiting.values()) < self.slots:
                self.ask(digest)

    def second(self) -> None:
        self.now += 1
        for worker in self.workers:
            for end in [end for end in worker.until if end <= self.now]:
                worker.until.remove(end)
                worker.used = self.now
                self._decide()  # as after every release
            if worker.state is WorkerState.LOADING and worker.changes <= self.now:
                worker.state = WorkerState.READY
            if worker.state is WorkerState.ENDING and worker.changes <= self.now:
                self.board.gone(worker.name)
                self.workers[self.workers.index(worker)] = SimulatedWorker(worker.name)
        self._decide()

    def _decide(self) -> None:
        board = self.board
        for worker in self.workers:
            board.update(self._view(worker))
        for action in decide(board, self.now, everything=True):
            if isinstance(action, Fail | SetThreads):
                raise AssertionError(action)
            worker = next(w for w in self.workers if w.name == action.worker)
            match action:
                case Dispatch(key, _):
                    board.remove(key)
                    _, context, since = self.waiting.pop(key)
                    assert context <= worker.context
                    self.begun[key] = self.now - since
                    worker.until.append(self.now + self.random.randint(1, LONGEST))
                    assert len(worker.until) <= self.slots
                    worker.used = self.now
                case LoadModel(_, digest, context):
                    worker.state, worker.digest = WorkerState.LOADING, digest
                    worker.context, worker.changes = context, self.now + LOADING
                case EndReplica():
                    assert not worker.until
                    worker.state, worker.changes = WorkerState.ENDING, self.now + LOADING
            board.update(self._view(worker))

    def _view(self, worker: SimulatedWorker) -> WorkerView:
        ready = worker.state is WorkerState.READY
        return WorkerView(
            worker.name,
            worker.state,
            worker.digest,
            worker.context,
            self.slots - len(worker.until) if ready else 0,
            len(worker.until),
            worker.used,
            ready_since=worker.changes,
            load_seconds=LOADING,
        )


SEEDS = range(5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("slots", [1, 4, 16])
def test_a_model_that_is_always_busy_gives_way_to_one_that_has_waited(slots: int, seed: int):
    host = Host(1, slots, seed)
    for _ in range(30):
        host.flood(A)
        host.second()
    other = host.ask(C)
    while other not in host.begun:
        host.flood(A)
        host.second()
        assert host.now < 30 + PATIENCE


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("slots", [4, 16])
def test_of_two_models_that_are_always_busy_one_gives_way_and_the_other_goes_on(
    slots: int, seed: int
):
    host = Host(2, slots, seed)
    for _ in range(30):
        host.flood(A, B)
        host.second()
    other, before = host.ask(C), len(host.begun)
    while other not in host.begun:
        host.flood(A, B)
        host.second()
        assert host.now < 30 + PATIENCE
    assert len(host.begun) - before > slots


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("slots", [4, 16])
def test_a_request_for_a_larger_context_is_served_beside_any_number_of_smaller_ones(
    slots: int, seed: int
):
    host = Host(1, slots, seed)
    for _ in range(30):
        host.flood(A)
        host.second()
    large = host.ask(A, LARGE)
    while large not in host.begun:
        host.flood(A)
        host.second()
        assert host.now < 30 + PATIENCE
    # Its replica serves the smaller ones, too: they need no exchange back.
    for _ in range(LONGEST):
        host.flood(A)
        host.second()
    assert host.workers[0].context == LARGE


@pytest.mark.parametrize("seed", SEEDS)
def test_three_models_share_one_worker_and_none_of_them_starves(seed: int):
    host = Host(1, 16, seed)
    for _ in range(600):
        host.flood(A, B, C)
        host.second()
    longest = max(host.now - since for _, _, since in host.waiting.values())
    # Each waits for the others' turns, each of which lasts until its streams have ended.
    assert max(longest, *host.begun.values()) < 3 * PATIENCE
