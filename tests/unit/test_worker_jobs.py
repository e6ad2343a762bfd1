"""Jobs of a blank worker other than a model, in a real process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import psutil
import pytest

from pronk.protocol.errors import Code
from pronk.protocol.messages.devices import (
    DeviceKind,
    Discover,
    Discovered,
    JobFailed,
    Measure,
    Measured,
)
from pronk.protocol.messages.fleet import Hello, WhoAreYou, WorkerPhase
from pronk.protocol.messages.generation import (
    ChatMessage,
    Chunks,
    GenerateBody,
    Kind,
    SamplingOptions,
)
from pronk.protocol.messages.library import ModelDetails, ModelFacts
from pronk.protocol.messages.placement import Load, Loaded, LoadFailed, SetThreads, Share, Unload
from pronk.workers.store.demo import WEIGHTS
from support.models import Shape, invent_vocabulary, write_random_model, write_reciting_model
from support.worker_stage import CONTEXT, DIGEST, Stage, staged

DETAILS = ModelDetails("", "gguf", "llama", ["llama"], "1M", "F32")


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged() as stage:
        yield stage


def load_of(path: Path, context: int = 512) -> Load:
    return Load(ModelFacts("m:latest", DIGEST, str(path), 1, 0, DETAILS), context, 1, parallel=2)


async def test_a_blank_worker_tells_of_the_devices_and_exits_cleanly(stage: Stage):
    await stage.start_worker()
    call = uuid4().hex
    stage.tell(Discover(call))
    answer: Discovered = await stage.inbox.wait(Discovered)
    assert answer.call == call
    assert 1 <= answer.cores <= (psutil.cpu_count() or 1)
    cpu = answer.devices[0]
    assert (cpu.name, cpu.kind, cpu.backend, cpu.id) == ("CPU", DeviceKind.CPU, "CPU", "")
    assert [device.kind for device in answer.devices].count(DeviceKind.CPU) == 1
    assert 0 < cpu.free <= cpu.total <= psutil.virtual_memory().total
    stage.tell(Unload("its job is done"))
    assert await stage.exit_status() == 0
    assert not stage.state.crash_record("w-0").exists()


async def test_it_exits_even_where_nobody_thanks_it(stage: Stage):
    await stage.start_worker()
    stage.tell(Discover(uuid4().hex))
    await stage.inbox.wait(Discovered)
    assert await stage.exit_status() == 0


async def test_a_blank_worker_measures_a_model_and_exits_cleanly(stage: Stage):
    await stage.start_worker()
    call = uuid4().hex
    stage.tell(Measure(call, load_of(WEIGHTS)))
    answer: Measured = await stage.inbox.wait(Measured)
    assert (answer.call, answer.slots, answer.layers) == (call, 2, 5)
    assert min(answer.weights, answer.slot, answer.compute) > 100_000
    stage.tell(Unload("its job is done"))
    assert await stage.exit_status() == 0


async def test_a_worker_with_a_job_is_blank_no_more(stage: Stage):
    await stage.start_worker()
    stage.tell(Measure(uuid4().hex, load_of(WEIGHTS)))
    stage.tell(WhoAreYou(stage.boot_id))
    hello = await stage.inbox.wait(Hello)
    assert hello.phase is WorkerPhase.LOADING
    stage.tell(load_of(WEIGHTS))
    answer = await stage.inbox.wait((Measured, Loaded, LoadFailed))  # type: ignore[arg-type]
    assert isinstance(answer, Measured)
    stage.tell(Unload("its job is done"))
    assert await stage.exit_status() == 0
    assert not [m for _, m in stage.inbox.messages if isinstance(m, (Loaded, LoadFailed))]


async def test_a_file_that_is_no_model_is_told_of(stage: Stage, tmp_path: Path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"no model")
    await stage.start_worker()
    call = uuid4().hex
    stage.tell(Measure(call, load_of(path)))
    answer: JobFailed = await stage.inbox.wait(JobFailed)
    assert (answer.call, answer.failure.code) == (call, Code.LOAD_FAILED)
    assert str(tmp_path) not in answer.failure.message
    stage.tell(Unload("its job is done"))
    assert await stage.exit_status() == 0


async def test_a_file_that_aborts_llama_cpp_ends_the_worker_alone(stage: Stage, tmp_path: Path):
    path = tmp_path / "m.gguf"
    # Four heads cannot share three: llama.cpp notices when it has begun to compute.
    vocabulary = invent_vocabulary(300, np.random.default_rng(0))
    shape = Shape(300, 256, 1, 4, 3, 64)
    write_random_model(path, shape, vocabulary, np.random.default_rng(0))
    await stage.start_worker()
    stage.tell(Measure(uuid4().hex, load_of(path)))
    assert await stage.exit_status() < 0
    assert stage.state.crash_record("w-0").exists()


@pytest.mark.parametrize(
    ("share", "layers", "part"),
    [(None, 0, 0.0), (Share("sim0", "", "simulated", 1.0), 2, 1.0)],
    ids=["on the processors", "simulated"],
)
async def test_a_worker_says_where_its_model_lies(
    stage: Stage, tmp_path: Path, share: Share | None, layers: int, part: float
):
    path = tmp_path / "m.gguf"
    write_reciting_model(path, ["abc"], context=CONTEXT)
    await stage.start_worker()
    stage.tell(replace(load_of(path, CONTEXT), shares=[share] if share else [], layers=layers))
    loaded: Loaded = await stage.inbox.wait((Loaded, LoadFailed))  # type: ignore[arg-type]
    model = loaded.model
    assert model.size > 70_000_000
    assert model.size_vram == pytest.approx(part * model.size, abs=2)
    assert {placed.device for placed in model.placed} == {"CPU"} | ({"sim0"} if share else set())
    assert sum(placed.size for placed in model.placed) == model.size
    # The cache is of its own, the weights are everybody's.
    assert model.resident > 70_000_000


async def test_a_device_that_is_not_there_fails_the_load(stage: Stage, tmp_path: Path):
    path = tmp_path / "m.gguf"
    write_reciting_model(path, ["abc"])
    await stage.start_worker()
    shares = [Share("CUDA7", "00ff:00:00.0", "CUDA", 1.0)]
    stage.tell(replace(load_of(path), shares=shares, layers=2))
    failed: LoadFailed = await stage.inbox.wait((Loaded, LoadFailed))  # type: ignore[arg-type]
    assert "CUDA7 is not there" in failed.failure.message


async def test_an_answer_goes_on_while_the_number_of_threads_changes(stage: Stage, tmp_path: Path):
    path = tmp_path / "m.gguf"
    write_reciting_model(path, ["xyx"], context=CONTEXT)
    await stage.start_worker()
    await stage.load(path)
    options = SamplingOptions(temperature=0.0, ignore_eos=True)
    stage.ask(GenerateBody(Kind.CHAT, options, messages=[ChatMessage("user", "x")]))
    text, threads = "", 1
    while len(text) < 240:
        (chunk,) = (await stage.reply.wait(Chunks)).chunks
        if len(text) // 40 != len(text + chunk.text) // 40:
            threads = 3 - threads
            stage.tell(SetThreads(threads))
        text += chunk.text
    assert text == ("xy" * len(text))[: len(text)]
    assert stage.process
    assert stage.process.returncode is None
