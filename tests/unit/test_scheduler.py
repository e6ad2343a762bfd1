"""The scheduler places requests: queueing, loading, unloading, refusing."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from pronk.protocol.codec import VERSION
from pronk.protocol.errors import Code
from pronk.protocol.messages.embedding import Embed
from pronk.protocol.messages.failure import Failure
from pronk.protocol.messages.fleet import (
    Hello,
    LoadedModel,
    ProcessIdentity,
    Role,
    WorkerPhase,
)
from pronk.protocol.messages.generation import (
    Caller,
    Cancel,
    Evict,
    Evicted,
    Failed,
    Generate,
    Preload,
    Preloaded,
)
from pronk.protocol.messages.placement import (
    Load,
    Loaded,
    LoadFailed,
    Unload,
)
from pronk.protocol.messages.status import ListRunning, RunningList
from pronk.protocol.process import own_identity
from support.stage import PATIENCE, UNKNOWN, A, B, Peer, Stage, StageMaker


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


async def test_a_request_for_vectors_takes_a_slot_like_any_other(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    first, second, third = frontend.generate(), frontend.embed(), frontend.generate()
    await worker.load()
    assert (await worker.expect(Generate))[0] == first
    worker.release(first)
    assert await worker.expect(Embed) == (second, b"numbers")
    frontend.send(second, b"numbers")  # again: it is known already
    assert worker.received == []
    worker.release(second)
    assert (await worker.expect(Generate))[0] == third


async def test_a_request_for_vectors_that_waits_past_its_deadline_is_answered(stage: Stage):
    stage.worker()  # which never says that it has loaded the model
    frontend = stage.frontend()
    header = frontend.embed(deadline=1.0)
    failed: Failed = await frontend.expect(Failed)
    assert (failed.request, failed.failure.code) == (header.request, Code.DEADLINE_EXCEEDED)


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
    frontend = stage.frontend()
    workers: list[Peer] = []
    for digest in (A, B):
        workers.append(stage.worker())
        header = frontend.generate(digest)
        await workers[-1].load()
        await workers[-1].expect(Generate)
        workers[-1].release(header)
    first, second = workers
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
