"""The scheduler has blank workers tell of devices and models, and waits for none of them long."""

from __future__ import annotations

import asyncio

import pytest

from pronk.protocol.errors import Code
from pronk.protocol.messages.devices import (
    Device,
    DeviceKind,
    Discover,
    Discovered,
    JobFailed,
    Measure,
    Measured,
)
from pronk.protocol.messages.failure import Failure
from pronk.protocol.messages.fleet import LoadedModel, WorkerPhase
from pronk.protocol.messages.generation import Generate
from pronk.protocol.messages.placement import Load, Unload
from pronk.scheduler import probes
from pronk.scheduler.devices import Devices
from pronk.scheduler.policies.assignment import WorkerState
from support.stage import PATIENCE, A, B, Peer, Stage, StageMaker

GPU = Device("CUDA0", DeviceKind.GPU, "CUDA", 24 * 2**30, 20 * 2**30, "")
ONE_SIMULATED = '[{"name":"sim0","memory":"8GiB"}]'


def devices_of(stage: Stage) -> Devices:
    return stage.scheduler._devices


async def whom(*workers: Peer) -> tuple[Peer, Peer]:
    """The one of two workers that was given a job, and the other."""
    async with asyncio.timeout(PATIENCE):
        while not any(worker.received for worker in workers):
            await asyncio.sleep(0.01)
    asked, other = sorted(workers, key=lambda worker: not worker.received)
    return asked, other


async def discover(worker: Peer, *gpus: Device) -> None:
    job: Discover = await worker.expect(Discover)
    worker.send(Discovered(job.call, list(gpus), 2))
    await worker.expect(Unload)
    worker.process.kill()


async def measure(worker: Peer) -> Measure:
    job: Measure = await worker.expect(Measure)
    worker.send(Measured(job.call, weights=10, slot=5, slots=2, compute=3, layers=4))
    await worker.expect(Unload)
    worker.process.kill()
    return job


async def test_one_worker_discovers_and_its_successor_loads(make_stage: StageMaker):
    stage = make_stage(discovered=False, workers=1)
    frontend, worker = stage.frontend(), stage.worker()
    header = frontend.generate()
    await discover(worker)
    successor = stage.worker()
    await successor.load()
    assert (await successor.expect(Generate))[0] == header


async def test_nothing_is_loaded_before_the_devices_are_known(make_stage: StageMaker):
    stage = make_stage(discovered=False, workers=2)
    frontend = stage.frontend()
    first, second = await whom(stage.worker(), stage.worker())
    job: Discover = await first.expect(Discover)
    frontend.generate()
    await stage_has(stage, A)
    assert stage.scheduler._fleet.workers[second.id].state is WorkerState.BLANK
    first.send(Discovered(job.call, [], 2))
    await second.load()
    await second.expect(Generate)


async def stage_has(stage: Stage, digest: str) -> None:
    """Returns when the scheduler knows what it needs to load a model."""
    async with asyncio.timeout(PATIENCE):
        while digest not in stage.scheduler._fleet.facts:
            await asyncio.sleep(0.01)


async def test_a_worker_that_is_ready_serves_before_the_devices_are_known(
    make_stage: StageMaker,
):
    stage = make_stage(discovered=False, workers=1)
    frontend = stage.frontend()
    model = LoadedModel("a:latest", A, 2048, 1, 1000, 0)
    worker = stage.worker(phase=WorkerPhase.READY, model=model)
    header = frontend.generate()
    assert (await worker.expect(Generate))[0] == header


async def test_a_driver_that_kills_two_workers_is_left_alone(make_stage: StageMaker):
    stage = make_stage(discovered=False, workers=1)
    frontend, first = stage.frontend(), stage.worker()
    frontend.generate()
    await first.expect(Discover)
    first.process.kill()
    second = stage.worker()
    job: Discover = await second.expect(Discover)
    second.send(JobFailed(job.call, Failure(Code.INTERNAL, "no driver")))
    await second.expect(Unload)
    second.process.kill()
    third = stage.worker()
    await third.load()
    await third.expect(Generate)


async def test_a_job_that_takes_too_long_ends_the_worker(
    make_stage: StageMaker, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(probes, "_JOB_SECONDS", 0.1)
    stage = make_stage(discovered=False, workers=1)
    worker = stage.worker()
    await worker.expect(Discover)
    beating = worker.beat()
    assert await asyncio.to_thread(worker.process.wait, PATIENCE) < 0
    beating.cancel()
    await stage.worker().expect(Discover)


async def test_no_worker_discovers_what_is_declared(make_stage: StageMaker):
    stage = make_stage(discovered=False, workers=1, devices=ONE_SIMULATED)
    frontend, worker = stage.frontend(), stage.worker()
    frontend.generate()
    await worker.expect(Measure)


async def test_a_model_is_measured_once_where_there_are_devices(make_stage: StageMaker):
    stage = make_stage(discovered=False, workers=1, devices=ONE_SIMULATED)
    frontend, worker = stage.frontend(), stage.worker()
    header = frontend.generate()
    job = await measure(worker)
    assert (job.load.model.digest, job.load.context_length) == (A, 2048)
    successor = stage.worker()
    await successor.load()
    assert (await successor.expect(Generate))[0] == header
    successor.process.kill()  # what it took is known, whoever loads it next
    frontend.generate()
    await stage.worker().expect(Load)


async def test_one_worker_measures_while_another_waits_to_load(make_stage: StageMaker):
    stage = make_stage(discovered=False, workers=2, devices=ONE_SIMULATED)
    stage.frontend().generate(A)
    first, second = await whom(stage.worker(), stage.worker())
    job: Measure = await first.expect(Measure)
    first.send(Measured(job.call, weights=10, slot=5, slots=2, compute=3, layers=4))
    await first.expect(Unload)
    assert (await second.load()).model.digest == A


async def test_a_file_that_kills_the_worker_that_measures_it_is_loaded_nevertheless(
    make_stage: StageMaker,
):
    stage = make_stage(discovered=False, workers=1, devices=ONE_SIMULATED)
    frontend, worker = stage.frontend(), stage.worker()
    frontend.generate(B)
    await worker.expect(Measure)
    worker.process.kill()
    assert (await stage.worker().load()).model.digest == B


async def test_an_answer_to_another_question_is_ignored(make_stage: StageMaker):
    stage = make_stage(discovered=False, workers=2)
    first, second = await whom(stage.worker(), stage.worker())
    job: Discover = await first.expect(Discover)
    second.send(Discovered(job.call, [GPU], 2))
    first.send(Discovered("f" * 32, [GPU], 2))
    first.send(Measured(job.call, 1, 1, 1, 1, 1))  # of a kind that was not asked for
    await first.expect(Unload)
    assert [view.name for view in devices_of(stage).views()] == ["CPU"]


async def test_what_a_loading_worker_was_promised_is_free_when_it_is_gone(stage: Stage):
    def free() -> int:
        stage.scheduler._devices.refresh()
        return sum(status.ours for status in stage.scheduler._devices.statuses())

    worker, frontend = stage.worker(), stage.frontend()
    frontend.generate()
    await worker.expect(Load)
    assert free() > 0
    worker.process.kill()
    async with asyncio.timeout(PATIENCE):
        while free():
            await asyncio.sleep(0.01)
