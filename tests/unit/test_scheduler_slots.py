"""The scheduler with workers that take several requests at a time."""

from __future__ import annotations

from uuid import uuid4

import pytest

from pronk.protocol.errors import Code
from pronk.protocol.messages.failure import Failure
from pronk.protocol.messages.fleet import LoadedModel, PeerHeartbeat, RequestReport, WorkerPhase
from pronk.protocol.messages.generation import (
    Caller,
    Cancel,
    Evict,
    Evicted,
    Failed,
    Generate,
    Lost,
)
from pronk.protocol.messages.placement import CacheType, Load, LoadFailed, Unload
from pronk.protocol.messages.status import ListRunning, RunningList
from support.stage import A, Peer, Stage, StageMaker


@pytest.fixture
async def stage(make_stage: StageMaker) -> Stage:
    return make_stage(workers=1)


async def occupied(worker: Peer, frontend: Peer, slots: int) -> list[Generate]:
    """Has a worker load a model with so many slots, all of which get a request."""
    headers = [frontend.generate() for _ in range(slots)]
    await worker.load(slots)
    for header in headers:
        assert (await worker.expect(Generate))[0] == header
    return headers


async def settled(frontend: Peer) -> None:
    """Returns when the scheduler has read all that this frontend sent before."""
    frontend.send(ListRunning("9" * 32))
    await frontend.expect(RunningList)


@pytest.mark.parametrize("slots", [4, 16])
async def test_a_worker_gets_as_many_requests_as_it_has_slots_and_then_one_for_each_that_ends(
    stage: Stage, slots: int
):
    worker, frontend = stage.worker(), stage.frontend()
    headers = await occupied(worker, frontend, slots)
    later = [frontend.generate() for _ in range(3)]
    await settled(frontend)
    assert worker.received == []
    for ended, following in zip((headers[slots // 2], headers[0], headers[-1]), later, strict=True):
        worker.release(ended)
        assert (await worker.expect(Generate))[0] == following
    assert worker.received == []


async def test_cancelling_one_of_many_reaches_the_worker_and_frees_its_slot_once_it_says_so(
    stage: Stage,
):
    worker, frontend = stage.worker(), stage.frontend()
    headers = await occupied(worker, frontend, 4)
    waiting = frontend.generate()
    frontend.send(Cancel(headers[2].request, 1))
    assert await worker.expect(Cancel) == Cancel(headers[2].request, 1)
    await settled(frontend)
    assert worker.received == []
    worker.release(headers[2])
    assert (await worker.expect(Generate))[0] == waiting


async def test_evicting_waits_for_the_last_of_many_streams(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    headers = await occupied(worker, frontend, 4)
    frontend.send(Evict(uuid4().hex, A, Caller()))
    await frontend.expect(Evicted)
    for header in headers[:-1]:
        worker.release(header)
    worker.send(PeerHeartbeat(1, 1))
    await settled(frontend)
    assert worker.received == []
    worker.release(headers[-1])
    await worker.expect(Unload)


async def test_a_model_is_kept_while_one_of_its_slots_is_busy(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    brief = [frontend.generate(keep_alive=0) for _ in range(3)]
    await worker.load(4)
    for _ in brief:
        await worker.expect(Generate)
    for header in brief[:-1]:
        worker.release(header)
    await settled(frontend)
    assert worker.received == []
    worker.release(brief[-1])
    await worker.expect(Unload)


async def test_a_larger_context_waits_until_the_last_stream_has_ended(make_stage: StageMaker):
    stage = make_stage(workers=1, context_length=512)
    worker, frontend = stage.worker(), stage.frontend()
    headers = await occupied(worker, frontend, 4)
    larger = frontend.generate(context_length=2048)
    for header in headers[:-1]:
        worker.release(header)
    # Meanwhile a smaller one may pass it.
    passing = frontend.generate()
    assert (await worker.expect(Generate))[0] == passing
    worker.release(passing)
    await settled(frontend)
    assert worker.received == []
    worker.release(headers[-1])
    await worker.expect(Unload)
    worker.process.kill()
    successor = stage.worker()
    assert (await successor.load(4)).context_length == 2048
    assert (await successor.expect(Generate))[0] == larger


async def test_the_death_of_a_worker_is_told_to_each_of_its_requests(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    headers = await occupied(worker, frontend, 16)
    worker.process.kill()
    lost = [await frontend.expect(Lost) for _ in headers]
    assert {message.request for message in lost} == {header.request for header in headers}


async def test_a_scheduler_that_starts_again_counts_what_runs_already(stage: Stage):
    frontend = stage.frontend()
    running = [RequestReport(uuid4().hex, 1, frontend.id) for _ in range(3)]
    model = LoadedModel("a:latest", A, 2048, 4, 1000, 0)
    worker = stage.worker(phase=WorkerPhase.READY, model=model, requests=running)
    first, second = frontend.generate(), frontend.generate()
    assert (await worker.expect(Generate))[0] == first
    await settled(frontend)
    assert worker.received == []
    worker.release(first)
    assert (await worker.expect(Generate))[0] == second


async def test_a_model_is_loaded_as_settings_and_modelfile_say(make_stage: StageMaker):
    stage = make_stage(
        workers=1, PRONK_NUM_PARALLEL=8, PRONK_KV_CACHE_TYPE="q8_0", cache_memory="1MiB"
    )
    stage.parameters[A] = {"num_ctx": 1024, "num_parallel": 2, "num_batch": "many"}
    worker, frontend = stage.worker(), stage.frontend()
    frontend.generate()
    load: Load = await worker.expect(Load)
    assert (load.context_length, load.parallel, load.batch) == (1024, 2, 512)
    assert (load.cache_type, load.cache_memory) == (CacheType.Q8_0, 1 << 20)


async def test_a_context_that_cannot_be_had_fails_only_who_asked_for_it(make_stage: StageMaker):
    stage = make_stage(workers=1, context_length=512)
    worker, frontend = stage.worker(), stage.frontend()
    large, small = frontend.generate(context_length=2048), frontend.generate()
    assert (await worker.expect(Load)).context_length == 2048
    worker.send(LoadFailed(A, Failure(Code.LOAD_FAILED, "no memory for it")))
    failed: Failed = await frontend.expect(Failed)
    assert failed.request == large.request
    await worker.expect(Unload)
    worker.process.kill()
    successor = stage.worker()
    assert (await successor.load(4)).context_length == 512
    assert (await successor.expect(Generate))[0] == small
    assert frontend.received == []
