"""After a death the scheduler separates its requests, so that the one that kills is found out."""

from __future__ import annotations

from uuid import uuid4

from pronk.protocol.messages.embedding import Embed
from pronk.protocol.messages.fleet import (
    LoadedModel,
    PeerHeartbeat,
    RequestReport,
    WorkerPhase,
)
from pronk.protocol.messages.generation import Failed, Generate, Lost
from pronk.protocol.messages.placement import Cleared
from pronk.protocol.messages.status import ListRunning, RunningList
from pronk.scheduler.service import Scheduler
from support.stage import A, Peer, Stage, StageMaker, processors_alone


async def settled(frontend: Peer) -> None:
    """Returns when the scheduler has done all that follows from what this frontend said."""
    frontend.send(ListRunning(uuid4().hex))
    await frontend.expect(RunningList)


async def losses(frontend: Peer, count: int) -> dict[str, tuple[bool, bool]]:
    """What is said of each request that was lost: whether its worker died, and died of it."""
    lost: list[Lost] = [await frontend.expect(Lost) for _ in range(count)]
    return {one.request: (one.died, one.alone) for one in lost}


async def two_that_run(worker: Peer, frontend: Peer) -> tuple[Generate, Generate]:
    """A request that nobody suspects, and a suspect that came beside it."""
    innocent = frontend.generate()
    await worker.load(slots=8)
    await worker.expect(Generate)
    suspect = frontend.generate(attempt=2, suspect=True)
    await worker.expect(Generate)
    return innocent, suspect


async def test_two_that_died_together_are_both_suspects_and_neither_is_blamed(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    first, second = frontend.generate(), frontend.generate()
    await worker.load(slots=2)
    for _ in range(2):
        await worker.expect(Generate)
    worker.process.kill()
    assert await losses(frontend, 2) == {
        first.request: (True, False),
        second.request: (True, False),
    }


async def test_suspects_share_no_worker_until_each_has_passed_its_step(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    suspects = [frontend.generate(attempt=2, suspect=True) for _ in range(3)]
    await worker.load(slots=8)
    for suspect in suspects:
        assert (await worker.expect(Generate))[0] == suspect
        await settled(frontend)
        assert worker.received == []
        worker.send(Cleared(suspect.request, 2))
    new = frontend.generate()
    assert (await worker.expect(Generate))[0] == new


async def test_nothing_new_joins_a_suspect_and_its_end_clears_it(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    running = frontend.generate()
    await worker.load(slots=8)
    await worker.expect(Generate)
    suspect = frontend.embed(suspect=True)
    assert (await worker.expect(Embed))[0] == suspect, "beside what runs there already"
    new = frontend.generate()
    await settled(frontend)
    assert worker.received == []
    worker.release(suspect)
    assert (await worker.expect(Generate))[0] == new
    assert running.request != new.request


async def test_the_one_suspect_is_blamed_and_what_ran_beside_it_is_not(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    innocent, suspect = await two_that_run(worker, frontend)
    worker.process.kill()
    assert await losses(frontend, 2) == {
        innocent.request: (True, False),
        suspect.request: (True, True),
    }


async def test_who_was_cleared_is_a_request_like_any_other(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    cleared = frontend.generate(attempt=2, suspect=True)
    await worker.load(slots=8)
    await worker.expect(Generate)
    worker.send(Cleared(cleared.request, 2))
    other = frontend.generate()
    await worker.expect(Generate)
    worker.process.kill()
    assert await losses(frontend, 2) == {
        cleared.request: (True, False),
        other.request: (True, False),
    }


async def test_what_a_worker_said_before_its_death_counts_before_it(make_stage: StageMaker):
    stage = make_stage(workers=1)
    worker, frontend = stage.worker(), stage.frontend()
    innocent, suspect = await two_that_run(worker, frontend)
    # The scheduler lives on this loop and stands still: it finds all of this and the death at once.
    for steps in range(200):
        worker.send(PeerHeartbeat(steps))
    worker.send(Cleared(suspect.request, 2))
    worker.process.kill()
    worker.process.wait()
    assert await losses(frontend, 2) == {
        innocent.request: (True, False),
        suspect.request: (True, False),
    }


async def test_a_restarted_scheduler_hears_who_is_a_suspect(make_stage: StageMaker):
    stage = make_stage()
    stage.scheduler.close()
    stage.scheduler = Scheduler(stage.settings, processors_alone(stage.settings))
    stage.scheduler.start()
    frontend = stage.frontend()
    suspect, innocent = uuid4().hex, uuid4().hex
    worker = stage.worker(
        phase=WorkerPhase.READY,
        model=LoadedModel("a:latest", A, 2048, 8, 1000, 0),
        requests=[
            RequestReport(suspect, 2, frontend.id, suspect=True),
            RequestReport(innocent, 1, frontend.id),
        ],
    )
    frontend.generate()
    await settled(frontend)
    assert worker.received == []
    worker.process.kill()
    assert await losses(frontend, 2) == {suspect: (True, True), innocent: (True, False)}


async def test_who_was_under_way_goes_before_those_who_wait_and_is_never_refused(
    make_stage: StageMaker,
):
    stage = make_stage(max_queue=1)
    worker, frontend = stage.worker(), stage.frontend()
    running = frontend.generate()
    await worker.load()
    await worker.expect(Generate)
    waiting = frontend.generate()
    resumed = [frontend.generate(attempt=2, suspect=True) for _ in range(2)]
    refused = frontend.generate()
    failed: Failed = await frontend.expect(Failed)
    assert failed.request == refused.request
    previous = running
    for header in (*resumed, waiting):
        worker.release(previous)
        assert (await worker.expect(Generate))[0] == header
        previous = header
