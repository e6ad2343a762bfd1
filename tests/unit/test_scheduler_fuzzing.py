"""Valid messages in an order that makes no sense, from peers in the wrong role: it never stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pronk.protocol.channels import Dealer
from pronk.protocol.codec import MAX_HEADER, VERSION, join
from pronk.protocol.errors import Code
from pronk.protocol.logs import counted
from pronk.protocol.messages import MESSAGES
from pronk.protocol.messages.devices import Measure, Measured
from pronk.protocol.messages.failure import Failure
from pronk.protocol.messages.fleet import (
    Hello,
    LoadedModel,
    PeerHeartbeat,
    ProcessIdentity,
    Role,
    SchedulerHeartbeat,
    WorkerPhase,
)
from pronk.protocol.messages.generation import Generate, Preload
from pronk.protocol.messages.library import ModelDetails, ModelFacts
from pronk.protocol.messages.placement import Load, Loaded, LoadFailed, Outcome, Released
from pronk.protocol.messages.status import ListRunning, RunningList
from pronk.protocol.settings import MIB
from pronk.scheduler import dispatcher, fleet, overview, probes, service
from pronk.scheduler.policies.assignment import WorkerState
from support.stage import PATIENCE, UNKNOWN, A, B, Stage, StageMaker
from support.wire import DIGESTS, PEERS, message

FRONTENDS, WORKERS = PEERS[:2], PEERS[2:5]
JOINED = PEERS[4:]
"""What these say counts as said over tcp."""

DETAILS = ModelDetails("", "gguf", "llama", ["llama"], "1M", "Q8_0")
ELSEWHERE = ProcessIdentity(0, 0, "pid:[0]", "another boot")
"""Never a process of this host: what claims to be one may be killed."""

HELLO = {
    "process": st.just(ELSEWHERE),
    "version": st.sampled_from([VERSION, VERSION, VERSION, 0]),
    "incarnation": st.sampled_from(PEERS),
}
STRAY = [message(name, **(HELLO if name == "Hello" else {})) for name in sorted(MESSAGES)]
FIRST = [
    message("Hello", **HELLO | {"incarnation": st.just(peer), "version": st.just(VERSION)})
    for peer in PEERS
]


@dataclass(frozen=True)
class Say:
    """A peer says something, perhaps again and again."""

    peer: str
    message: Any
    body: bytes = b""
    times: int = 1


@dataclass(frozen=True)
class Greet:
    """A peer introduces itself in its own role."""

    peer: str


@dataclass(frozen=True)
class Obey:
    """A worker does what it was told: loads its model, or ends its oldest request."""

    peer: str


@dataclass(frozen=True)
class Wait:
    """Time passes, while everybody's heart beats or nobody's does."""

    ticks: int
    beating: bool


def said(*messages: st.SearchStrategy[Any], by: list[str]) -> st.SearchStrategy[Say]:
    return st.builds(
        Say,
        st.sampled_from(by),
        st.one_of(messages),
        st.binary(max_size=4),
        st.sampled_from([1, 1, 2]),
    )


ASKED = {"deadline": st.sampled_from([None, None, None, 1.0]), "digest": st.sampled_from(DIGESTS)}
GREETINGS = [Greet(peer) for peer in FRONTENDS + WORKERS]
STEPS = st.tuples(
    st.sampled_from([GREETINGS, GREETINGS, GREETINGS, []]),
    st.lists(
        st.one_of(
            st.builds(Greet, st.sampled_from(FRONTENDS + WORKERS)),
            st.builds(Obey, st.sampled_from(WORKERS)),
            st.builds(Obey, st.sampled_from(WORKERS)),
            said(message("Generate", **ASKED), message("Embed", **ASKED), by=FRONTENDS),
            said(message("Generate", **ASKED), message("Preload"), by=FRONTENDS),
            said(message("Evict"), message("Cancel"), message("ListRunning"), by=FRONTENDS),
            said(*map(message, ("Loaded", "LoadFailed", "Released", "PeerHeartbeat")), by=WORKERS),
            said(*STRAY, by=PEERS),
            said(*FIRST, by=PEERS),
            st.builds(Wait, st.sampled_from([1, 2, 20]), st.just(True)),
            st.builds(Wait, st.sampled_from([1, 20, 400]), st.booleans()),
        ),
        min_size=10,
        max_size=60,
    ),
).map(lambda parts: [*parts[0], *parts[1]])


def facts(digest: str) -> ModelFacts:
    return ModelFacts(f"{digest[0]}:latest", digest, f"/{digest[0]}", 10, 2048, DETAILS)


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.moment = 1000.0

    def __call__(self) -> float:
        return self.moment


@contextlib.contextmanager
def clock() -> Iterator[Clock]:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        for module in (service, dispatcher, fleet, overview, probes):
            patch.setattr(module, "now", clock)
        yield clock


MODELLESS = (WorkerState.BLANK, WorkerState.PROBING, WorkerState.ENDING)


def assert_consistent(scheduler: service.Scheduler) -> None:
    known = scheduler._fleet
    running = [key for worker in known.workers.values() for key in worker.running]
    assert known.queue.size == sum(len(waiting.body) for waiting in known.waiting.values())
    assert len(known.queue) == len(known.waiting)
    assert all(key in known.queue for key in known.waiting)
    assert all(waiting.frontend in known.frontends for waiting in known.waiting.values())
    assert not set(known.waiting) & set(running)
    fresh = [waiting for waiting in known.waiting.values() if not waiting.resumed]
    assert len(fresh) <= scheduler._settings.max_queue
    for peer in (*known.workers.values(), *known.frontends.values()):
        assert known.workers.get(peer.id, peer) is peer or known.frontends[peer.id] is peer
    for worker in known.workers.values():
        assert worker.model is not None or worker.state is not WorkerState.READY
        assert worker.digest is not None or worker.state in MODELLESS
        assert not worker.running or worker.state not in (WorkerState.BLANK, WorkerState.LOADING)


class Play:
    """A scheduler, and peers that are connected and do what the steps say."""

    def __init__(self, directory: str, clock: Clock) -> None:
        self._clock = clock
        self._stage = Stage(directory, workers=1, max_queue=2)
        self.scheduler = self._stage.scheduler
        known = [digest for digest in DIGESTS if digest != UNKNOWN]
        for digest in known:
            self.scheduler._dispatcher.learn(facts(digest))
        self._dealers: list[Dealer] = []

    async def connect(self) -> None:
        greeted: list[Any] = []
        for peer in PEERS[:5]:  # the last one's connection is gone
            self._dealers.append(self._dealer(peer, greeted))
            self._dealers[-1].send(PeerHeartbeat())
        async with asyncio.timeout(PATIENCE):
            while len(greeted) < len(self._dealers):
                await asyncio.sleep(0.001)

    def _dealer(self, peer: str, heard: list[Any]) -> Dealer:
        endpoint = self._stage.state.scheduler
        return Dealer(endpoint, peer, lambda message, body: heard.append(message))

    def step(self, step: Any) -> None:
        match step:
            case Wait(ticks, beating):
                for _ in range(ticks):
                    self._clock.moment += service.TICK
                    for peer in PEERS if beating else []:
                        self._hear(peer, PeerHeartbeat(), b"")
                    self.scheduler._tick()
            case Say(peer, message, body, times):
                for _ in range(times):
                    self._hear(peer, message, body)
            case Greet(peer):
                self._hear(peer, hello(peer), b"")
            case Obey(peer):
                if answer := self._obedience(peer):
                    self._hear(peer, answer, b"")

    def _hear(self, peer: str, message: Any, body: bytes) -> None:
        joined = peer in JOINED
        (self.scheduler._on_remote if joined else self.scheduler._on_message)(peer, message, body)

    def _obedience(self, peer: str) -> Any:
        worker = self.scheduler._fleet.workers.get(peer)
        if worker and worker.state is WorkerState.LOADING and worker.digest:
            context = worker.context_length
            return Loaded(LoadedModel("a:latest", worker.digest, context, 2, 1000, 0), 10**6)
        job = self.scheduler._dispatcher.probes._jobs.get(peer)
        if worker and worker.state is WorkerState.PROBING and isinstance(job, Measure):
            return Measured(job.call, weights=100, slot=10, slots=2, compute=5, layers=3)
        if worker and worker.running:
            return Released(*next(iter(worker.running)), Outcome.FINISHED, 3)
        return None

    async def still_answers(self) -> bool:
        """Whether somebody new is greeted and answered, over its socket."""
        heard: list[Any] = []
        self._dealers.append(self._dealer("f" * 16, heard))
        self._dealers[-1].send(hello("f" * 16))
        self._dealers[-1].send(ListRunning("1" * 32))
        async with asyncio.timeout(PATIENCE):
            while not any(isinstance(message, RunningList) for message in heard):
                await asyncio.sleep(0.001)
        return any(isinstance(message, SchedulerHeartbeat) for message in heard)

    def close(self) -> None:
        for dealer in self._dealers:
            dealer.close()
        self._stage.close()


def hello(peer: str) -> Hello:
    if peer in WORKERS:
        return Hello(VERSION, Role.WORKER, peer, ELSEWHERE, phase=WorkerPhase.BLANK)
    return Hello(VERSION, Role.FRONTEND, peer, ELSEWHERE, endpoint="ipc:///nowhere/f.sock")


async def play(steps: list[Any], directory: str, clock: Clock) -> None:
    play = Play(directory, clock)
    try:
        await play.connect()
        for step in steps:
            play.step(step)
            assert_consistent(play.scheduler)
        assert await play.still_answers()
        assert_consistent(play.scheduler)
    finally:
        play.close()


async def test_bytes_that_are_no_message_are_counted_and_stop_nobody(
    stage: Stage, caplog: pytest.LogCaptureFixture
):
    chance = random.Random(7)
    frames = [chance.randbytes(chance.randrange(200)) for _ in range(200)]
    for _ in range(200):
        frame = bytearray(join(hello(FRONTENDS[0])))
        for _ in range(4):
            frame[chance.randrange(len(frame))] = chance.randrange(256)
        frames.append(bytes(frame))
    before = counted()
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.IDENTITY, PEERS[5].encode())
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(stage.state.scheduler)
        for frame in frames:
            stranger.send(frame)
        stranger.send_multipart([b"two", b"frames"])
        frontend = stage.frontend()
        frontend.send(ListRunning("1" * 32))
        await frontend.expect(RunningList)
        kind = ("pronk.protocol.channels", "malformed message")
        async with asyncio.timeout(PATIENCE):
            while counted().get(kind, 0) - before.get(kind, 0) < 200:
                await asyncio.sleep(0.01)
    assert 1 <= sum("malformed message" in line for line in caplog.messages) <= 3
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_message_over_the_limit_ends_its_connection_and_no_other(make_stage: StageMaker):
    stage = make_stage(max_generation_body=1)
    frontend = stage.frontend()
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        monitor = stranger.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        stranger.connect(stage.state.scheduler)
        stranger.send(bytes(MAX_HEADER + 2 * MIB))
        assert await asyncio.to_thread(monitor.poll, 1000 * PATIENCE)
        stranger.disable_monitor()
        monitor.close()
    frontend.send(ListRunning("1" * 32))
    await frontend.expect(RunningList)


async def test_a_preload_under_the_id_of_a_waiting_request_does_not_take_its_place(stage: Stage):
    frontend = stage.frontend()
    header = frontend.generate()
    frontend.send(Preload(header.request, "model", header.digest, header.caller))
    worker = stage.worker()
    await worker.load()
    assert (await worker.expect(Generate))[0] == header
    assert stage.scheduler._fleet.queue.size == 0


async def test_a_load_that_nobody_ordered_fails_nothing(stage: Stage):
    frontend, worker = stage.frontend(), stage.worker()
    header = frontend.generate(A)
    load: Load = await worker.expect(Load)
    waiting = frontend.generate(B)
    worker.send(LoadFailed(B, Failure(Code.LOAD_FAILED, "not what I was told to load")))
    worker.send(Loaded(LoadedModel("a:latest", A, load.context_length, 1, 1000, 0), 10**6))
    assert (await worker.expect(Generate))[0] == header
    assert frontend.received == []
    assert (waiting.request, 1) in stage.scheduler._fleet.waiting


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(STEPS)
def test_no_order_of_messages_stops_the_scheduler(
    caplog: pytest.LogCaptureFixture, steps: list[Any]
):
    caplog.clear()
    with clock() as time, tempfile.TemporaryDirectory(prefix="pronk-", dir="/tmp") as directory:
        asyncio.run(play(steps, directory, time))
    faults = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not faults, faults[0].getMessage()
