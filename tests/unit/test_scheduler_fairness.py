"""The scheduler shares what it has among callers, and refuses whoever filled its waiting room."""

from __future__ import annotations

from uuid import uuid4

from pronk.protocol.errors import Code
from pronk.protocol.messages.generation import Caller, Failed, Generate, Preload, Preloaded
from pronk.protocol.messages.placement import Load
from support.stage import A, Peer, Stage, StageMaker

MANY = 40


async def served(worker: Peer, count: int) -> list[Generate]:
    """The next requests that a worker with one slot gets, each as soon as the last one ended."""
    headers: list[Generate] = []
    for _ in range(count):
        header, _ = await worker.expect(Generate)
        worker.release(header)
        headers.append(header)
    return headers


async def test_the_first_request_of_one_caller_passes_the_many_of_another(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    heavy = [frontend.generate(caller="heavy") for _ in range(MANY)]
    await worker.load()
    light = frontend.generate(caller="light")
    order = await served(worker, MANY + 1)
    # One was sent before, and one may have had its turn already.
    assert order.index(light) <= 2
    assert [header for header in order if header != light] == heavy


async def test_callers_who_share_an_address_through_different_frontends_are_one(stage: Stage):
    worker = stage.worker()
    first, second = stage.frontend(), stage.frontend()
    for _ in range(10):
        first.generate(caller="heavy")
    await worker.load()
    for _ in range(10):
        second.generate(caller="heavy")
    light = second.generate(caller="light")
    assert (await served(worker, 21)).index(light) <= 2


async def test_work_is_what_counts_and_a_class_has_its_weight(make_stage: StageMaker):
    stage = make_stage(PRONK_CALLER_CLASSES={"people": {"weight": 3, "callers": ["person-*"]}})
    worker, frontend = stage.worker(), stage.frontend()
    for _ in range(MANY):
        frontend.generate(caller="person-1", cost=200)
        frontend.generate(caller="script", cost=100)
    await worker.load()
    order = await served(worker, MANY)
    work = dict.fromkeys(("person-1", "script"), 0)
    for header in order[1:]:  # the first one went before anybody else was there
        work[header.caller.subject] += header.cost
    assert abs(work["person-1"] / 3 - work["script"]) <= 200 / 3 + 100


async def test_a_full_queue_refuses_the_heaviest_callers_newest_and_takes_anothers_request(
    make_stage: StageMaker,
):
    stage = make_stage(max_queue=5)
    frontend = stage.frontend()
    heavy = [frontend.generate(caller="heavy") for _ in range(5)]
    light = frontend.generate(caller="light")
    failed: Failed = await frontend.expect(Failed)
    assert (failed.request, failed.failure.code) == (heavy[-1].request, Code.QUEUE_FULL)
    assert failed.failure.retry_after
    assert failed.failure.retry_after >= 1
    worker = stage.worker()
    await worker.load()
    assert light in await served(worker, 5)
    assert frontend.received == []


async def test_what_waits_too_long_is_told_to_try_again(make_stage: StageMaker):
    stage = make_stage(queue_timeout=0.05)
    frontend = stage.frontend()
    header = frontend.generate()
    failed: Failed = await frontend.expect(Failed)
    assert failed.request == header.request
    assert failed.failure.code is Code.QUEUE_FULL
    assert "PRONK_QUEUE_TIMEOUT" in failed.failure.message
    assert failed.failure.retry_after


async def test_what_was_begun_before_and_a_load_that_is_asked_for_may_wait_longer(
    make_stage: StageMaker,
):
    stage = make_stage(queue_timeout=0.05)
    frontend = stage.frontend()
    resumed = frontend.generate(attempt=2)
    preload = Preload(uuid4().hex, "model", A, Caller())
    frontend.send(preload)
    ordinary = frontend.generate()
    # Once this one has been given up, the others have waited just as long.
    assert (await frontend.expect(Failed)).request == ordinary.request
    worker = stage.worker()
    await worker.load()
    assert (await worker.expect(Generate))[0] == resumed
    assert await frontend.expect(Preloaded) == Preloaded(preload.request)


async def test_what_was_begun_before_goes_first_and_is_never_refused(make_stage: StageMaker):
    stage = make_stage(max_queue=3)
    frontend = stage.frontend()
    waiting = [frontend.generate(caller="x") for _ in range(3)]
    resumed = frontend.generate(caller="x", attempt=2)  # it takes nobody's place
    beyond = frontend.generate(caller="x")
    assert (await frontend.expect(Failed)).request == beyond.request
    worker = stage.worker()
    await worker.load()
    assert await served(worker, 4) == [resumed, *waiting]


async def test_a_load_that_is_asked_for_twice_is_one(stage: Stage):
    frontend = stage.frontend()
    preload = Preload(uuid4().hex, "model", A, Caller())
    frontend.send(preload)
    frontend.send(preload)
    header = frontend.generate()
    worker = stage.worker()
    load: Load = await worker.load()
    assert load.model.digest == A
    assert await frontend.expect(Preloaded) == Preloaded(preload.request)
    assert (await worker.expect(Generate))[0] == header
    assert frontend.received == []
