"""Draining as the scheduler sees it: nothing new for who leaves, and operators who ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from pronk.protocol import questions
from pronk.protocol.channels import Dealer
from pronk.protocol.codec import VERSION
from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.control import (
    Drain,
    DrainBegun,
    DrainKind,
    ListProcesses,
    ProcessList,
)
from pronk.protocol.messages.fleet import (
    BeginDraining,
    Draining,
    Hello,
    LoadedModel,
    PeerHeartbeat,
    Placed,
    Refused,
    RequestReport,
    Role,
    WorkerPhase,
)
from pronk.protocol.messages.generation import Evict, Evicted, Generate
from pronk.protocol.messages.placement import Load, Unload
from pronk.protocol.process import new_incarnation, own_identity
from pronk.protocol.questions import Questions
from pronk.scheduler.policies.assignment import WorkerState
from pronk.scheduler.service import Scheduler
from support.stage import PATIENCE, A, Peer, Stage, StageMaker, processors_alone

ON_GPU = LoadedModel("a:latest", A, 2048, 2, 1000, 1000, [Placed("gpu0", 500), Placed("gpu1", 500)])


class Operator:
    """Asks the scheduler as `pronk status` and `pronk drain` do."""

    def __init__(self, stage: Stage) -> None:
        self.questions = Questions(stage.state.control, "the scheduler")

    async def processes(self) -> ProcessList:
        answer = await self.questions.ask(ListProcesses, PATIENCE)
        assert isinstance(answer, ProcessList)
        return answer

    async def sees(self, count: int) -> None:
        """Returns when the scheduler knows so many processes."""
        async with asyncio.timeout(PATIENCE):
            while len((await self.processes()).processes) < count:
                await asyncio.sleep(0.01)

    async def drain(self, kind: DrainKind, name: str, **more: object) -> list[str]:
        def order(call: str) -> Drain:
            return Drain(call, kind, name, **more)  # type: ignore[arg-type]

        answer = await self.questions.ask(order, PATIENCE)
        assert isinstance(answer, DrainBegun)
        return [entry.incarnation for entry in answer.processes]


@pytest.fixture
async def operator(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Operator]:
    # On a machine that stands still questions would be repeated, and orders carried out twice.
    monkeypatch.setattr(questions, "REPEAT_SECONDS", PATIENCE)
    operator = Operator(stage)
    yield operator
    operator.questions.close()


async def busy(stage: Stage, frontend: Peer, slots: int = 2) -> tuple[Peer, Generate]:
    """A worker that has the model A and one request of two that it could have."""
    worker = stage.worker(name="worker-07")
    header = frontend.generate()
    await worker.load(slots)
    await worker.expect(Generate)
    return worker, header


async def test_a_worker_that_drains_gets_nothing_new_and_is_sent_away_when_it_is_done(
    stage: Stage,
):
    frontend = stage.frontend()
    worker, header = await busy(stage, frontend)
    worker.send(Draining())
    # Requests come on another connection: this answer says that the word before it has arrived.
    worker.send(Hello(VERSION + 1, Role.WORKER, worker.id, own_identity()))
    await worker.expect(Refused)
    following = frontend.generate()
    successor = stage.worker()
    await successor.load()
    assert (await successor.expect(Generate))[0] == following
    assert worker.received == []
    worker.release(header)
    await worker.expect(Unload)


async def test_a_worker_that_has_nothing_to_finish_is_sent_away_at_once(stage: Stage):
    blank, idle = stage.worker(), stage.worker(phase=WorkerPhase.READY, model=ON_GPU)
    for worker in (blank, idle):
        worker.send(Draining())
        await worker.expect(Unload)


async def test_who_waits_for_a_model_whose_load_is_drained_waits_for_another_worker(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    header = frontend.generate()
    await worker.expect(Load)
    worker.send(Draining())
    await worker.expect(Unload)
    worker.process.kill()
    successor = stage.worker()
    await successor.load()
    assert (await successor.expect(Generate))[0] == header
    assert frontend.received == []


async def test_a_restarted_scheduler_sends_a_draining_worker_nothing_new(make_stage: StageMaker):
    stage = make_stage(workers=2)
    frontend = stage.frontend()
    request = uuid4().hex
    draining = stage.worker(
        phase=WorkerPhase.DRAINING,
        model=ON_GPU,
        requests=[RequestReport(request, 1, frontend.id)],
    )
    stage.worker(phase=WorkerPhase.DRAINING, model=ON_GPU)
    await stage.peers[-1].expect(Unload)  # it had nothing left
    successor = stage.worker()
    header = frontend.generate()
    await successor.load()
    assert (await successor.expect(Generate))[0] == header
    assert draining.received == []


async def test_an_evicted_model_finishes_its_requests(stage: Stage):
    frontend = stage.frontend()
    worker, header = await busy(stage, frontend)
    evict = Evict(uuid4().hex, A, header.caller)
    frontend.send(evict)
    assert await frontend.expect(Evicted) == Evicted(evict.request)
    assert worker.received == []
    worker.release(header)
    await worker.expect(Unload)


async def test_an_operator_sees_every_process(stage: Stage, operator: Operator):
    frontend = stage.frontend(name="frontend-00")
    worker, _ = await busy(stage, frontend)
    frontend.send(PeerHeartbeat(in_flight=5))
    nameless = stage.worker()

    async def listed() -> ProcessList:
        while len((answer := await operator.processes()).processes) < 3 or not answer.complete:
            await asyncio.sleep(0.01)
        return answer

    async with asyncio.timeout(PATIENCE):
        answer = await listed()
    entries = {entry.name: entry for entry in answer.processes}
    assert set(entries) == {"frontend-00", "worker-07", nameless.id}
    loaded = entries["worker-07"]
    assert (loaded.incarnation, loaded.pid) == (worker.id, worker.process.pid)
    assert (loaded.role, loaded.state) == (Role.WORKER, "ready")
    assert (loaded.model, loaded.requests) == ("a:latest", 1)
    assert entries[nameless.id].state == "blank"
    served = entries["frontend-00"]
    assert (served.role, served.state, served.requests) == (Role.FRONTEND, "serving", 5)


@pytest.mark.parametrize("by", ["name", "incarnation"])
async def test_an_operator_has_a_worker_drained(stage: Stage, operator: Operator, by: str):
    frontend = stage.frontend()
    worker, header = await busy(stage, frontend)
    name = "worker-07" if by == "name" else worker.id
    assert await operator.drain(DrainKind.WORKER, name, timeout=90.0) == [worker.id]
    assert await worker.expect(BeginDraining) == BeginDraining(90.0)
    (entry,) = [e for e in (await operator.processes()).processes if e.name == "worker-07"]
    assert entry.state == "draining"
    # Again, with another limit.
    assert await operator.drain(DrainKind.WORKER, name) == [worker.id]
    assert await worker.expect(BeginDraining) == BeginDraining(None)
    frontend.generate()
    successor = stage.worker()
    await successor.load()
    worker.release(header)
    await worker.expect(Unload)


async def test_an_operator_has_a_frontend_drained(stage: Stage, operator: Operator):
    frontend = stage.frontend(name="frontend-00")
    await operator.sees(1)
    await operator.drain(DrainKind.FRONTEND, "frontend-00", timeout=5)
    assert await frontend.expect(BeginDraining) == BeginDraining(5)
    frontend.send(Draining())
    async with asyncio.timeout(PATIENCE):
        while (await operator.processes()).processes[0].state != "draining":
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", list(DrainKind))
async def test_a_name_that_nothing_has_is_an_error_that_says_what_there_is(
    stage: Stage, operator: Operator, kind: DrainKind
):
    worker = stage.worker(name="worker-00", phase=WorkerPhase.READY, model=ON_GPU)
    stage.frontend(name="frontend-00")
    there = {"worker": "worker-00", "frontend": "frontend-00", "device": "CPU, gpu0, gpu1"}[kind]
    await operator.sees(2)
    with pytest.raises(PronkError) as caught:
        await operator.drain(kind, "nobody")
    assert caught.value.code is Code.NOT_FOUND
    assert caught.value.message == f"there is no {kind} 'nobody'; there are: {there}"
    assert worker.received == []


async def test_a_drained_device_is_left_by_all_and_stays_so_over_a_restart(make_stage: StageMaker):
    stage = make_stage(workers=3)
    frontend = stage.frontend()
    request = uuid4().hex
    on_both = stage.worker(
        phase=WorkerPhase.READY, model=ON_GPU, requests=[RequestReport(request, 1, frontend.id)]
    )
    idle = stage.worker(phase=WorkerPhase.READY, model=ON_GPU)
    elsewhere = stage.worker(
        phase=WorkerPhase.READY,
        model=LoadedModel("a:latest", A, 2048, 1, 9, 9, [Placed("gpu1", 9)]),
    )
    operator = Operator(stage)
    await operator.sees(4)
    assert set(await operator.drain(DrainKind.DEVICE, "gpu0")) == {on_both.id, idle.id}
    await on_both.expect(BeginDraining)
    await idle.expect(Unload)
    assert (await operator.processes()).drained_devices == ["gpu0"]
    assert stage.scheduler._fleet.workers[elsewhere.id].state is WorkerState.READY
    assert elsewhere.received == []

    stage.scheduler.close()
    stage.scheduler = Scheduler(stage.settings, processors_alone(stage.settings))
    stage.scheduler.start()
    assert stage.scheduler._fleet.drained_devices == {"gpu0"}
    assert await operator.drain(DrainKind.DEVICE, "gpu0", undo=True) == []
    assert (await operator.processes()).drained_devices == []
    assert stage.scheduler._fleet.drained_devices == set()
    operator.questions.close()


async def test_a_damaged_memory_of_drained_devices_keeps_no_scheduler_from_starting(stage: Stage):
    for damage in (b"", b"\xff", b'{"gpu0": 1}', b"["):
        stage.scheduler.close()
        stage.state.drained_devices.write_bytes(damage)
        stage.scheduler = Scheduler(stage.settings, processors_alone(stage.settings))
        stage.scheduler.start()
        assert stage.scheduler._fleet.drained_devices == set()


async def test_what_is_no_question_of_an_operator_changes_nothing(stage: Stage, operator: Operator):
    stranger = Dealer(stage.state.control, new_incarnation(), lambda message, body: None)
    stranger.send(Hello(VERSION, Role.WORKER, "a" * 16, own_identity()))
    stranger.send(Unload("now"), b"body")
    stranger.send(Draining())
    assert (await operator.processes()).processes == []
    stranger.close()
