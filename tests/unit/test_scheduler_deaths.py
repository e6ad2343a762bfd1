"""The scheduler notices who comes, who dies, who hangs, and learns all anew after a restart."""

from __future__ import annotations

import asyncio
import signal
import time
from uuid import uuid4

import pytest

from pronk.protocol.codec import VERSION
from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.failure import Failure
from pronk.protocol.messages.fleet import (
    Hello,
    LoadedModel,
    PeerHeartbeat,
    Refused,
    RequestReport,
    Role,
    WhoAreYou,
    WorkerPhase,
)
from pronk.protocol.messages.generation import (
    Cancel,
    Failed,
    Generate,
    Lost,
)
from pronk.protocol.messages.placement import (
    Load,
    LoadFailed,
    Outcome,
    Released,
    Unload,
)
from pronk.protocol.process import new_incarnation, own_identity
from pronk.scheduler import death_watch, service
from pronk.scheduler.service import Scheduler
from support.stage import PATIENCE, A, B, Stage, StageMaker


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


@pytest.mark.parametrize("standstills", [[0.7], [0.2, 0.2, 0.2, 0.2]])
async def test_a_scheduler_that_stood_still_blames_nobody_else(
    make_stage: StageMaker, monkeypatch: pytest.MonkeyPatch, standstills: list[float]
):
    monkeypatch.setattr(service, "TICK", 0.02)
    stage = make_stage(workers=1)
    worker, frontend = stage.worker(), stage.frontend()
    beating = worker.beat()
    header = frontend.generate()
    await worker.load()
    await worker.expect(Generate)
    stage.change(stall_timeout=0.5)
    for seconds in standstills:
        time.sleep(seconds)  # noqa: ASYNC251  the scheduler lives on this loop and stands still
        stage.scheduler._tick()  # uvloop looks at its timers before it reads what has come
    stage.change(stall_timeout=3600)
    worker.release(header)
    other = frontend.generate()
    assert (await worker.expect(Generate))[0] == other
    assert worker.process.poll() is None
    beating.cancel()


async def test_a_dead_worker_whose_last_words_are_read_gets_nothing_new(
    make_stage: StageMaker, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(death_watch, "_LOOK_SECONDS", 0.02)
    stage = make_stage(workers=1)
    worker, frontend = stage.worker(), stage.frontend()
    header = frontend.generate()
    await worker.load(slots=2)
    await worker.expect(Generate)
    known = stage.scheduler._fleet.workers[worker.id]
    worker.process.kill()
    async with asyncio.timeout(PATIENCE):
        while not known.dead:
            await asyncio.sleep(0.001)
    # Its connection is still there, and as far as it is known two requests fit into it.
    innocent = frontend.generate()
    assert (await frontend.expect(Lost)).request == header.request
    assert worker.received == []
    successor = stage.worker()
    await successor.load()
    assert (await successor.expect(Generate))[0] == innocent


async def test_a_load_whose_worker_dies_is_tried_by_another(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    header = frontend.generate()
    await worker.expect(Load)
    worker.process.kill()
    successor = stage.worker()
    await successor.load()
    assert (await successor.expect(Generate))[0] == header
    assert frontend.received == []


async def test_a_model_that_ends_three_workers_is_left_alone_for_a_while(make_stage: StageMaker):
    stage = make_stage(load_cooldown=3600)
    frontend = stage.frontend()
    header = frontend.generate()
    for _ in range(3):
        worker = stage.worker()
        await worker.expect(Load)
        assert frontend.received == []
        worker.process.kill()
    failed: Failed = await frontend.expect(Failed)
    assert (failed.request, failed.failure.code) == (header.request, Code.LOAD_FAILED)
    assert "died over it" in failed.failure.message
    fresh = stage.worker()
    other = frontend.generate(B)  # others are not concerned
    await fresh.load()
    assert (await fresh.expect(Generate))[0] == other
    late = frontend.generate()
    failed = await frontend.expect(Failed)
    assert (failed.request, failed.failure.code) == (late.request, Code.LOAD_FAILED)
    assert "3 times in a row" in failed.failure.message
    assert failed.failure.retry_after
    stage.scheduler._dispatcher._cooldowns._seconds = 0.0  # as if that time were over
    frontend.generate()
    last = stage.worker()
    await last.load()
    await last.expect(Generate)


async def test_a_file_that_cannot_be_loaded_costs_three_workers_and_no_more(stage: Stage):
    frontend = stage.frontend()
    reason = Failure(Code.LOAD_FAILED, "a could not be loaded: it is no model")
    for _ in range(3):
        worker = stage.worker()
        frontend.generate()
        await worker.expect(Load)
        worker.send(LoadFailed(A, reason))
        failed: Failed = await frontend.expect(Failed)
        assert failed.failure == reason, "each is answered at once"
        await worker.expect(Unload)
        worker.process.kill()
    blank = stage.worker()
    frontend.generate()
    failed = await frontend.expect(Failed)
    assert failed.failure.message.startswith(reason.message)
    assert blank.received == []


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
    stage = make_stage()
    worker, frontend = stage.worker(), stage.frontend()
    beating = worker.beat()
    header = frontend.generate()
    await worker.load()
    await worker.expect(Generate)
    stage.change(stall_timeout=1.5)
    lost: Lost = await frontend.expect(Lost)
    beating.cancel()
    assert (lost.request, lost.died, lost.alone) == (header.request, True, True)
    assert await asyncio.to_thread(worker.process.wait, PATIENCE) == -signal.SIGKILL


async def test_the_death_of_a_worker_is_told_to_the_owner_of_each_request(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    header = frontend.generate()
    await worker.load()
    await worker.expect(Generate)
    worker.process.kill()
    lost: Lost = await frontend.expect(Lost)
    assert (lost.request, lost.attempt, lost.died, lost.alone) == (header.request, 1, True, True)
    retry = frontend.generate(attempt=2, suspect=True)
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
