"""The scheduler, with real sockets, beside peers that the test plays.

A worker here is a process that only sleeps: the scheduler watches and kills it like any other,
while the test speaks for it.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from pronk.protocol.channels import Dealer, Router
from pronk.protocol.codec import VERSION
from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.failure import Failure
from pronk.protocol.messages.fleet import (
    Hello,
    LoadedModel,
    PeerHeartbeat,
    ProcessIdentity,
    Refused,
    RequestReport,
    Role,
    SchedulerHeartbeat,
    WhoAreYou,
    WorkerPhase,
)
from pronk.protocol.messages.generation import (
    Caller,
    Cancel,
    Evict,
    Evicted,
    Failed,
    Generate,
    Lost,
    Preload,
    Preloaded,
)
from pronk.protocol.messages.library import (
    CallFailed,
    DescribeModel,
    ModelDescribed,
    ModelDetails,
    ModelFacts,
)
from pronk.protocol.messages.placement import (
    Load,
    Loaded,
    LoadFailed,
    Outcome,
    Released,
    Unload,
)
from pronk.protocol.messages.status import ListRunning, RunningList
from pronk.protocol.process import new_incarnation, own_identity
from pronk.protocol.settings import load_settings
from pronk.protocol.state import StateDirectory
from pronk.scheduler import service
from pronk.scheduler.service import Scheduler

PATIENCE = 20
A, B, UNKNOWN = "a" * 64, "b" * 64, "e" * 64
DETAILS = ModelDetails("", "gguf", "llama", ["llama"], "1M", "Q8_0")


class Peer:
    """A process of the test's own: a frontend or a worker, as the scheduler sees it."""

    def __init__(self, state: StateDirectory, role: Role, process: subprocess.Popen[bytes]) -> None:
        self.id = new_incarnation()
        self.role = role
        self.process = process
        self.endpoint = state.frontend(self.id)
        self.received: list[Any] = []
        self._news = asyncio.Event()
        self.dealer = Dealer(state.scheduler, self.id, self._on_message)

    def _on_message(self, message: Any, body: bytes) -> None:
        if not isinstance(message, SchedulerHeartbeat):
            self.received.append((message, body) if body else message)
        self._news.set()

    def hello(self, **fields: Any) -> None:
        here = own_identity()
        start = psutil.Process(self.process.pid).create_time() - psutil.boot_time()
        ticks = _start_ticks(self.process.pid) if start >= 0 else 0
        identity = ProcessIdentity(self.process.pid, ticks, here.pid_namespace, here.host_boot_id)
        if self.role is Role.FRONTEND:
            fields.setdefault("endpoint", self.endpoint)
        else:
            fields.setdefault("phase", WorkerPhase.BLANK)
        self.dealer.send(Hello(VERSION, self.role, self.id, identity, **fields))

    def send(self, message: Any, body: bytes = b"") -> None:
        self.dealer.send(message, body)

    async def expect(self, kind: type[Any]) -> Any:
        """The next message, which has to be of this kind."""
        async with asyncio.timeout(PATIENCE):
            while not self.received:
                self._news.clear()
                await self._news.wait()
        message = self.received.pop(0)
        bare = message[0] if isinstance(message, tuple) else message
        assert isinstance(bare, kind), bare
        return message

    async def load(self) -> Load:
        """Plays a worker that loads what it is told."""
        load: Load = await self.expect(Load)
        model = LoadedModel(load.model.name, load.model.digest, load.context_length, 1, 1000, 0)
        self.send(Loaded(model, 10**6))
        return load

    def generate(self, digest: str = A, **fields: Any) -> Generate:
        header = Generate(
            uuid4().hex,
            fields.pop("attempt", 1),
            "model",
            digest,
            Caller(),
            self.id,
            self.endpoint,
            seed=1,
            cost=1,
            **fields,
        )
        self.send(header, b"body")
        return header

    def release(self, header: Generate) -> None:
        self.send(Released(header.request, header.attempt, Outcome.FINISHED, 3))

    def beat(self) -> asyncio.Task[None]:
        """Plays a worker that lives, and whose engine stands still."""

        async def beat_for_ever() -> None:
            while True:
                self.send(PeerHeartbeat(steps=1, in_flight=1))
                await asyncio.sleep(0.1)

        return asyncio.create_task(beat_for_ever())


def _start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


class Stage:
    """A scheduler, a store that knows the models A and B, and whoever the test adds."""

    def __init__(self, directory: str, **settings: Any) -> None:
        self.settings = load_settings(state=directory, **settings)
        self.state = StateDirectory(self.settings.state)
        self.scheduler = Scheduler(self.settings)
        self.scheduler.start()
        self.store = Router(self.state.store, self._asked)
        self.peers: list[Peer] = []

    def _asked(self, peer: str, question: DescribeModel, body: bytes) -> None:
        answer: Any
        if question.digest == UNKNOWN:
            failure = Failure(Code.LOAD_FAILED, "this file is no model")
            answer = CallFailed(question.call, failure)
        else:
            name = question.digest[0]
            facts = ModelFacts(f"{name}:latest", question.digest, f"/{name}", 10, 2048, DETAILS)
            answer = ModelDescribed(question.call, facts)
        self.store.send(peer, answer)

    def add(self, role: Role, *, greet: bool = True, **hello: Any) -> Peer:
        command = [sys.executable, "-c", "import time; time.sleep(300)"]
        peer = Peer(self.state, role, subprocess.Popen(command))
        self.peers.append(peer)
        if greet:
            peer.hello(**hello)
        return peer

    def frontend(self, **hello: Any) -> Peer:
        return self.add(Role.FRONTEND, **hello)

    def worker(self, **hello: Any) -> Peer:
        return self.add(Role.WORKER, **hello)

    def close(self) -> None:
        for peer in self.peers:
            peer.dealer.close()
            peer.process.kill()
            peer.process.wait()
        self.store.close()
        self.scheduler.close()


StageMaker = Callable[..., Stage]


@pytest.fixture
async def make_stage() -> AsyncIterator[StageMaker]:
    stages: list[Stage] = []
    with tempfile.TemporaryDirectory(prefix="pronk-", dir="/tmp") as directory:

        def make(**settings: Any) -> Stage:
            stages.append(Stage(directory, **settings))
            return stages[-1]

        yield make
        for stage in stages:
            stage.close()


@pytest.fixture
async def stage(make_stage: StageMaker) -> Stage:
    return make_stage()


async def test_a_request_loads_its_model_and_reaches_the_worker_as_it_was_sent(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    header = frontend.generate()
    load = await worker.load()
    assert (load.model.digest, load.context_length) == (A, 2048)
    assert await worker.expect(Generate) == (header, b"body")


async def test_one_worker_takes_one_request_at_a_time_in_order(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    headers = [frontend.generate() for _ in range(3)]
    await worker.load()
    for header in headers:
        assert (await worker.expect(Generate))[0] == header
        assert worker.received == []
        worker.release(header)


async def test_a_request_that_is_known_already_is_not_run_twice(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    header = frontend.generate()
    frontend.send(header, b"body")
    await worker.load()
    await worker.expect(Generate)
    frontend.send(header, b"body")
    worker.release(header)
    other = frontend.generate()
    assert (await worker.expect(Generate))[0] == other


async def test_a_second_model_takes_the_place_of_an_idle_one(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    header = frontend.generate(A)
    await worker.load()
    await worker.expect(Generate)
    frontend.generate(B)
    worker.release(header)
    await worker.expect(Unload)
    worker.process.kill()
    successor = stage.worker()
    assert (await successor.load()).model.digest == B
    await successor.expect(Generate)


async def test_making_room_for_one_model_costs_one_other(stage: Stage):
    first, second, frontend = stage.worker(), stage.worker(), stage.frontend()
    for digest, worker in ((A, first), (B, second)):
        header = frontend.generate(digest)
        await worker.load()
        await worker.expect(Generate)
        worker.release(header)
    third = frontend.generate("c" * 64)
    await first.expect(Unload)
    first.process.kill()
    # While its successor starts, the model in the other worker is not in anybody's way.
    successor = stage.worker()
    await successor.load()
    assert (await successor.expect(Generate))[0] == third
    assert second.received == []


async def test_a_model_whose_file_promises_more_context_than_it_has_is_not_loaded_for_ever(
    stage: Stage,
):
    worker, frontend = stage.worker(), stage.frontend()
    header = frontend.generate(context_length=2048)
    load: Load = await worker.expect(Load)
    assert load.context_length == 2048
    worker.send(Loaded(LoadedModel("a:latest", A, 1024, 1, 1000, 0), 10**6))
    assert (await worker.expect(Generate))[0] == header


async def test_a_model_that_nobody_waits_for_any_more_stays_for_the_usual_time(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    header = frontend.generate()
    load: Load = await worker.expect(Load)
    frontend.send(Cancel(header.request, 1))
    frontend.send(ListRunning("1" * 32))  # once this is answered, the cancellation has arrived
    await frontend.expect(RunningList)
    worker.send(Loaded(LoadedModel("a:latest", A, load.context_length, 1, 1000, 0), 10**6))
    async with asyncio.timeout(PATIENCE):
        while not stage.scheduler._fleet.workers[worker.id].model:
            await asyncio.sleep(0.01)
    frontend.send(ListRunning("0" * 32))
    running: RunningList = await frontend.expect(RunningList)
    assert [model.digest for model in running.models] == [A]


async def test_a_worker_that_died_before_it_was_greeted_says_nothing_about_a_model(stage: Stage):
    ghost = stage.worker(greet=False)
    ghost.process.kill()
    await asyncio.to_thread(ghost.process.wait)
    here = own_identity()
    unwatched = ProcessIdentity(0, 0, here.pid_namespace, here.host_boot_id)
    ghost.send(Hello(VERSION, Role.WORKER, ghost.id, unwatched, phase=WorkerPhase.BLANK))
    frontend = stage.frontend()
    frontend.send(ListRunning("0" * 32))
    await frontend.expect(RunningList)
    ghost.dealer.close()
    header = frontend.generate()
    worker = stage.worker()
    await worker.load()
    assert (await worker.expect(Generate))[0] == header
    assert frontend.received == []


async def test_a_frontend_learns_what_nobody_works_on_any_more(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(service, "CLAIM_SECONDS", 0.1)
    worker, frontend = stage.worker(), stage.frontend()
    given_up = frontend.generate()
    await worker.load()
    await worker.expect(Generate)
    worker.release(given_up)
    running = frontend.generate()
    await worker.expect(Generate)
    # It stood still, and took nothing; now it says again what it is waiting for.
    frontend.hello(
        requests=[
            RequestReport(header.request, 1, frontend.id, worker.id)
            for header in (running, given_up)
        ]
    )
    lost: Lost = await frontend.expect(Lost)
    assert (lost.request, lost.attempt) == (given_up.request, 1)
    assert frontend.received == []


async def test_a_scheduler_that_stood_still_blames_nobody_else(
    make_stage: StageMaker, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(service, "TICK", 0.1)
    monkeypatch.setattr(service, "STANDSTILL", 0.3)
    stage = make_stage(stall_timeout=1)
    worker, frontend = stage.worker(), stage.frontend()
    beating = worker.beat()
    header = frontend.generate()
    await worker.load()
    await worker.expect(Generate)
    time.sleep(1.5)  # noqa: ASYNC251  the scheduler lives on this loop and stands still
    stage.scheduler._tick()  # uvloop looks at its timers before it reads what has come meanwhile
    worker.release(header)
    other = frontend.generate()
    assert (await worker.expect(Generate))[0] == other
    assert worker.process.poll() is None
    beating.cancel()


async def test_a_preload_is_answered_when_the_model_is_ready_and_evicting_unloads_it(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    preload = Preload(uuid4().hex, "model", A, Caller())
    frontend.send(preload)
    await worker.load()
    assert await frontend.expect(Preloaded) == Preloaded(preload.request)
    evict = Evict(uuid4().hex, A, Caller())
    frontend.send(evict)
    assert await frontend.expect(Evicted) == Evicted(evict.request)
    await worker.expect(Unload)


async def test_evicting_a_busy_model_lets_its_request_finish(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    header = frontend.generate()
    await worker.load()
    await worker.expect(Generate)
    frontend.send(Evict(uuid4().hex, A, Caller()))
    await frontend.expect(Evicted)
    assert worker.received == []
    worker.release(header)
    await worker.expect(Unload)


async def test_an_idle_model_is_unloaded_after_its_keep_alive(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    header = frontend.generate(keep_alive=0)
    await worker.load()
    await worker.expect(Generate)
    worker.release(header)
    await worker.expect(Unload)


async def test_what_is_loaded_is_listed_with_its_expiry(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    header = frontend.generate(keep_alive=-1)
    await worker.load()
    await worker.expect(Generate)
    worker.release(header)
    frontend.send(ListRunning("0" * 32))
    running: RunningList = await frontend.expect(RunningList)
    (model,) = running.models
    assert (model.name, model.digest, model.size, model.context_length) == (
        "a:latest",
        A,
        1000,
        2048,
    )
    assert model.expires_at is None


async def test_a_full_queue_refuses_the_newest_and_says_when_to_try_again(make_stage: StageMaker):
    stage = make_stage(max_queue=2)
    frontend = stage.frontend()
    frontend.generate()
    frontend.generate()
    third = frontend.generate()
    failed: Failed = await frontend.expect(Failed)
    assert failed.request == third.request
    assert failed.failure.code is Code.QUEUE_FULL
    assert failed.failure.retry_after


async def test_the_queue_is_bounded_in_bytes(make_stage: StageMaker):
    stage = make_stage(max_queue_bytes=6)
    frontend = stage.frontend()
    frontend.generate()
    second = frontend.generate()
    failed: Failed = await frontend.expect(Failed)
    assert (failed.request, failed.failure.code) == (second.request, Code.QUEUE_FULL)


async def test_a_model_that_cannot_be_described_fails_its_requests_with_the_reason(stage: Stage):
    frontend = stage.frontend()
    header = frontend.generate(UNKNOWN)
    failed: Failed = await frontend.expect(Failed)
    assert (failed.request, failed.failure.message) == (header.request, "this file is no model")


async def test_a_model_that_cannot_be_loaded_fails_its_requests_and_no_others(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    bad = frontend.generate(A)
    await worker.expect(Load)
    good = frontend.generate(B)
    worker.send(LoadFailed(A, Failure(Code.LOAD_FAILED, "bad magic")))
    failed: Failed = await frontend.expect(Failed)
    assert (failed.request, failed.failure.message) == (bad.request, "bad magic")
    await worker.expect(Unload)
    worker.process.kill()
    successor = stage.worker()
    await successor.load()
    assert (await successor.expect(Generate))[0] == good


async def test_a_worker_that_dies_while_loading_fails_the_requests_for_its_model(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    header = frontend.generate()
    await worker.expect(Load)
    worker.process.kill()
    failed: Failed = await frontend.expect(Failed)
    assert (failed.request, failed.failure.code) == (header.request, Code.LOAD_FAILED)


async def test_a_load_that_takes_too_long_is_ended(make_stage: StageMaker):
    stage = make_stage(load_timeout=0.5)
    worker, frontend = stage.worker(), stage.frontend()
    frontend.generate()
    await worker.expect(Load)
    failed: Failed = await frontend.expect(Failed)
    assert "PRONK_LOAD_TIMEOUT" in failed.failure.message
    assert await asyncio.to_thread(worker.process.wait, PATIENCE) == -signal.SIGKILL


async def test_a_worker_without_progress_is_killed_and_its_request_reported_lost(
    make_stage: StageMaker,
):
    stage = make_stage(stall_timeout=1.5)
    worker, frontend = stage.worker(), stage.frontend()
    beating = worker.beat()
    header = frontend.generate()
    await worker.load()
    await worker.expect(Generate)
    lost: Lost = await frontend.expect(Lost)
    beating.cancel()
    assert lost.request == header.request
    assert await asyncio.to_thread(worker.process.wait, PATIENCE) == -signal.SIGKILL


async def test_the_death_of_a_worker_is_told_to_the_owner_of_each_request(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    header = frontend.generate()
    await worker.load()
    await worker.expect(Generate)
    worker.process.kill()
    lost: Lost = await frontend.expect(Lost)
    assert (lost.request, lost.attempt) == (header.request, 1)
    retry = frontend.generate(attempt=2)
    successor = stage.worker()
    await successor.load()
    assert (await successor.expect(Generate))[0] == retry


async def test_the_death_of_a_frontend_cancels_what_it_asked_for(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    running, waiting = frontend.generate(), frontend.generate()
    await worker.load()
    await worker.expect(Generate)
    frontend.process.kill()
    assert await worker.expect(Cancel) == Cancel(running.request, 1)
    worker.release(running)
    survivor = stage.frontend()
    other = survivor.generate()
    assert (await worker.expect(Generate))[0] == other
    assert waiting.request != other.request


async def test_cancelling_reaches_the_worker_or_takes_the_request_out_of_the_queue(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    first, second, third = (frontend.generate() for _ in range(3))
    await worker.load()
    await worker.expect(Generate)
    frontend.send(Cancel(second.request, 1))
    frontend.send(Cancel(first.request, 1))
    assert await worker.expect(Cancel) == Cancel(first.request, 1)
    worker.release(first)
    assert (await worker.expect(Generate))[0] == third


async def test_a_stranger_is_asked_who_it_is(stage: Stage):
    worker = stage.add(Role.WORKER, greet=False)
    worker.send(PeerHeartbeat())
    await worker.expect(WhoAreYou)
    worker.hello()
    stage.frontend().generate()
    await worker.expect(Load)


async def test_another_version_of_the_protocol_is_refused(stage: Stage):
    worker = stage.add(Role.WORKER, greet=False)
    worker.send(Hello(VERSION + 1, Role.WORKER, worker.id, own_identity()))
    await worker.expect(Refused)


async def test_a_second_scheduler_on_one_directory_is_kept_out(stage: Stage):
    with pytest.raises(PronkError, match="another server runs"):
        Scheduler(stage.settings).start()


async def test_a_restarted_scheduler_learns_everything_from_its_peers(make_stage: StageMaker):
    stage = make_stage()
    old_boot = stage.scheduler._boot_id
    stage.scheduler.close()
    stage.scheduler = Scheduler(stage.settings)
    stage.scheduler.start()
    assert stage.scheduler._boot_id != old_boot
    frontend = stage.frontend(greet=False)
    request = uuid4().hex
    worker = stage.worker(
        phase=WorkerPhase.READY,
        model=LoadedModel("a:latest", A, 2048, 1, 1000, 0),
        requests=[RequestReport(request, 1, frontend.id)],
    )
    vanished = uuid4().hex
    frontend.hello(
        requests=[
            RequestReport(request, 1, frontend.id, worker.id),
            RequestReport(vanished, 1, frontend.id, new_incarnation()),
        ]
    )
    waiting = frontend.generate()
    worker.send(Released(request, 1, Outcome.FINISHED, 5))
    assert (await worker.expect(Generate))[0] == waiting
    lost: Lost = await frontend.expect(Lost)
    assert lost.request == vanished


async def test_a_frontend_that_even_the_first_word_never_reached_is_told(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(service, "CLAIM_SECONDS", 0.1)
    worker, frontend = stage.worker(), stage.frontend()
    undelivered = frontend.generate()
    await worker.load()
    await worker.expect(Generate)
    waiting = [frontend.generate(), frontend.generate()]
    worker.release(undelivered)
    await worker.expect(Generate)
    frontend.hello(
        requests=[
            RequestReport(header.request, 1, frontend.id) for header in (undelivered, *waiting)
        ]
    )
    lost: Lost = await frontend.expect(Lost)
    assert (lost.request, lost.attempt) == (undelivered.request, 1)
    assert frontend.received == []


async def test_a_tiny_context_decides_for_nobody_but_who_asked_for_it(make_stage: StageMaker):
    stage = make_stage(context_length=512)
    worker, frontend = stage.worker(), stage.frontend()
    tiny = frontend.generate(context_length=8)
    assert (await worker.load()).context_length == 8
    await worker.expect(Generate)
    usual = frontend.generate()
    worker.release(tiny)
    await worker.expect(Unload)
    worker.process.kill()
    successor = stage.worker()
    assert (await successor.load()).context_length == 512
    assert (await successor.expect(Generate))[0] == usual


async def test_a_larger_context_gets_a_larger_replica_once_the_old_one_is_idle(
    make_stage: StageMaker,
):
    stage = make_stage(context_length=512)
    worker, frontend = stage.worker(), stage.frontend()
    header = frontend.generate()
    assert (await worker.load()).context_length == 512
    await worker.expect(Generate)
    larger = frontend.generate(context_length=100_000)
    worker.release(header)
    await worker.expect(Unload)
    worker.process.kill()
    successor = stage.worker()
    assert (await successor.load()).context_length == 2048
    assert (await successor.expect(Generate))[0] == larger
