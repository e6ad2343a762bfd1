"""The scheduler with several replicas of a model, and with models that do not fit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from pronk.protocol.errors import Code
from pronk.protocol.limits import ModelLimits
from pronk.protocol.messages.devices import Measure, Measured
from pronk.protocol.messages.fleet import LoadedModel, WorkerPhase
from pronk.protocol.messages.generation import Failed, Generate
from pronk.protocol.messages.placement import Load, Unload
from pronk.protocol.messages.status import ListRunning, RunningList
from pronk.scheduler.policies import growth, replicas
from support.stage import PATIENCE, A, B, Peer, Stage, StageMaker


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "GROW_AFTER", 0.1)


async def first_to_hear(*workers: Peer) -> Peer:
    """The one of these workers that is told something."""
    await until(lambda: any(worker.received for worker in workers))
    return next(worker for worker in workers if worker.received)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def two_replicas(stage: Stage) -> tuple[Peer, Peer, Peer]:
    """A model with two busy replicas of one slot each, and the frontend that asked."""
    workers, frontend = [stage.worker(), stage.worker()], stage.frontend()
    frontend.generate(keep_alive=3600)
    first = await first_to_hear(*workers)
    await first.load()
    await first.expect(Generate)
    frontend.generate(keep_alive=60)
    second = next(worker for worker in workers if worker is not first)
    await second.load()
    await second.expect(Generate)
    return first, second, frontend


async def test_a_busy_model_gets_a_second_replica_where_cores_are_to_spare(make_stage: StageMaker):
    stage = make_stage(workers=2, threads=1)
    first, second, frontend = await two_replicas(stage)
    third = frontend.generate()
    frontend.send(ListRunning("0" * 32))
    running: RunningList = await frontend.expect(RunningList)
    (model,) = running.models
    assert (model.name, model.size, model.context_length) == ("a:latest", 2000, 2048)
    # The first one was asked to stay for an hour, the second one for a minute.
    assert model.expires_at is not None
    assert model.expires_at - time.time() > 3000
    assert first.received == second.received == []
    second.process.kill()
    await until(lambda: len(stage.scheduler._fleet.workers) == 1)
    assert third.request in {key[0] for key in stage.scheduler._fleet.waiting}


async def test_a_replica_gets_all_cores_when_it_is_the_only_one_that_works(make_stage: StageMaker):
    stage = make_stage(workers=2, threads=2)
    one, other, frontend = stage.worker(), stage.worker(), stage.frontend()
    first = frontend.generate()
    a = await first_to_hear(one, other)
    assert (await a.load()).threads == 2
    await a.expect(Generate)
    second = frontend.generate(B)
    b = other if a is one else one
    assert (await b.load()).threads == 1
    await b.expect(Generate)
    await until(lambda: a.threads == 1)
    a.release(first)
    await until(lambda: b.threads == 2)
    third = frontend.generate()
    await a.expect(Generate)
    await until(lambda: b.threads == 1)
    assert third.request != second.request


async def test_a_prompt_goes_to_the_replica_that_says_that_it_has_read_it(make_stage: StageMaker):
    stage = make_stage(workers=2)
    model = LoadedModel("a:latest", A, 2048, 4, 1000, 0)
    chains = [[b"model", bytes([n]) * 16, bytes([9, n]) * 8] for n in range(2)]
    workers = [
        stage.worker(phase=WorkerPhase.READY, model=model, prefixes=chain) for chain in chains
    ]
    frontend = stage.frontend()
    for turn, n in enumerate((1, 1, 0, 1, 0)):
        header = frontend.generate(prefix=[*chains[n], bytes([turn])], cost=4096)
        assert (await workers[n].expect(Generate))[0] == header
    assert workers[0].received == workers[1].received == []


async def test_a_model_is_preloaded_and_one_that_is_to_stay_is_loaded_again(
    make_stage: StageMaker, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(growth, "STAND_AGAIN", 0.1)
    limits = {"a": ModelLimits(preload=True), "b": ModelLimits(min_replicas=1)}
    stage = make_stage(workers=2, model_limits=limits, keep_alive=0)
    workers = [stage.worker(), stage.worker()]
    loaded: dict[str, Peer] = {}
    for worker in workers:
        loaded[(await worker.load()).model.digest] = worker
    assert loaded.keys() == {A, B}
    # The first one's time is over at once; the other one stays, and comes back after a death.
    await loaded[A].expect(Unload)
    loaded[A].process.kill()
    loaded[B].process.kill()
    successor = stage.worker()
    assert (await successor.load()).model.digest == B
    assert successor.received == []


async def test_a_model_that_does_not_fit_is_refused_with_the_numbers(make_stage: StageMaker):
    stage = make_stage(workers=1)
    stage.sizes[A] = 2**50
    worker, frontend = stage.worker(), stage.frontend()
    header = frontend.generate()
    measure: Measure = await worker.expect(Measure)
    worker.send(Measured(measure.call, 2**50, 0, 1, 0, 33))
    failed: Failed = await frontend.expect(Failed)
    assert (failed.request, failed.failure.code) == (header.request, Code.LOAD_FAILED)
    assert "a:latest does not fit: it needs 1048576.0 GiB" in failed.failure.message
    await worker.expect(Unload)


async def test_what_a_modelfile_says_of_layers_is_nothing_to_a_host_without_a_gpu(
    make_stage: StageMaker,
):
    stage = make_stage(workers=1)
    stage.parameters[A] = {"num_gpu": 10, "main_gpu": 1}
    worker, frontend = stage.worker(), stage.frontend()
    frontend.generate()
    load: Load = await worker.expect(Load)
    assert (load.shares, load.layers) == ([], 0)
