"""Models on real GPUs. Skipped, with the reason, where llama.cpp finds none."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pronk.protocol.messages.devices import Device, Measure, Measured
from pronk.protocol.messages.fleet import LoadedModel
from pronk.protocol.messages.generation import ChatMessage, GenerateBody, Kind, SamplingOptions
from pronk.protocol.messages.library import ModelDetails, ModelFacts, ModelPart, PartKind
from pronk.protocol.messages.placement import Load, Loaded, LoadFailed, Share, Unload
from support.adapters import write_adapter, write_reciting_adapter
from support.gpus import discovered, gpus, share_of
from support.models import write_reciting_model
from support.server import wait_for
from support.worker_stage import DIGEST, Stage

pytestmark = pytest.mark.gpu

CHAIN = "abcdéfghij"
CONTEXT = 32768
LAYERS = 2
"""Of the reciting model: one, and the output layer."""

MIB = 2**20
DETAILS = ModelDetails("", "gguf", "llama", ["llama"], "1M", "F32")
QUESTION = GenerateBody(
    Kind.CHAT, SamplingOptions(temperature=0.0), messages=[ChatMessage("user", "hello")]
)

StageMaker = Callable[[], Stage]


@pytest.fixture
async def make_stage() -> AsyncIterator[StageMaker]:
    """Makes workers, each with a scheduler and a frontend that the test plays."""
    stages: list[Stage] = []
    with tempfile.TemporaryDirectory() as root:

        def make() -> Stage:
            stages.append(Stage(Path(root) / str(len(stages))))
            return stages[-1]

        yield make
        for stage in stages:
            await stage.close()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "m.gguf"
    write_reciting_model(path, [CHAIN], context=CONTEXT)
    return path


def load_of(weights: Path, shares: list[Share], layers: int) -> Load:
    facts = ModelFacts("m:latest", DIGEST, str(weights), weights.stat().st_size, CONTEXT, DETAILS)
    return Load(facts, CONTEXT, 1, parallel=8, shares=shares, layers=layers)


async def loaded(stage: Stage, load: Load) -> LoadedModel:
    await stage.start_worker()
    stage.tell(load)
    answer = await stage.inbox.wait((Loaded, LoadFailed))  # type: ignore[arg-type]
    assert isinstance(answer, Loaded), answer
    return answer.model


async def text_of(stage: Stage) -> str:
    stage.ask(QUESTION)
    return (await stage.answer())[1]


def on(model: LoadedModel, name: str) -> int:
    return sum(part.size for part in model.placed if part.device == name)


def seen_after(shares: list[Share]) -> list[str]:
    """The bus ids of the GPUs that a process sees which was given these."""
    program = (
        "import json, sys\n"
        "from pronk.protocol.messages.placement import Share\n"
        "from pronk.workers.visibility import choose_devices\n"
        "choose_devices([Share(*share) for share in json.loads(sys.argv[1])])\n"
        "from pronk.workers.inference.ggml import visible_devices\n"
        "print(json.dumps([d.id for d in visible_devices() if d.kind == 'gpu']))\n"
    )
    given = json.dumps([[s.device, s.id, s.backend, s.portion] for s in shares])
    output = subprocess.check_output([sys.executable, "-c", program, given], text=True, timeout=60)
    return json.loads(output.splitlines()[-1])


def test_discovery_tells_of_memory_and_bus(tmp_path: Path):
    for gpu in gpus():
        assert 0 < gpu.free <= gpu.total
        assert gpu.total > 256 * MIB
        if gpu.backend in ("CUDA", "ROCm"):
            assert gpu.id


def test_devices_are_fixed_before_the_runtime_starts():
    found = gpus()
    if found[0].backend not in ("CUDA", "ROCm"):
        pytest.skip(f"{found[0].backend} has no way to hide a device from a process")
    assert seen_after([]) == []
    for gpu in found:
        assert seen_after([share_of(gpu)]) == [gpu.id]
    backwards = [share_of(gpu) for gpu in reversed(found)]
    assert seen_after(backwards) == [share.id for share in backwards]


async def test_a_whole_model_lies_on_a_gpu_and_says_what_it_should(
    make_stage: StageMaker, weights: Path
):
    gpu, stage = gpus()[0], make_stage()
    model = await loaded(stage, load_of(weights, [share_of(gpu)], LAYERS))
    assert model.size_vram == on(model, gpu.name) > 0.8 * model.size
    assert model.size_vram + on(model, "CPU") == model.size
    assert await text_of(stage) == CHAIN


async def test_a_part_of_a_model_lies_on_a_gpu(make_stage: StageMaker, weights: Path):
    gpu = gpus()[0]
    whole = await loaded(make_stage(), load_of(weights, [share_of(gpu)], LAYERS))
    stage = make_stage()
    part = await loaded(stage, load_of(weights, [share_of(gpu)], 1))
    assert 0 < part.size_vram < whole.size_vram
    assert on(part, "CPU") > on(whole, "CPU")
    assert await text_of(stage) == CHAIN


async def test_a_model_is_split_over_two_gpus(make_stage: StageMaker, weights: Path):
    first, second = gpus(2)[:2]
    stage = make_stage()
    shares = [share_of(first), share_of(second)]
    model = await loaded(stage, load_of(weights, shares, LAYERS))
    assert on(model, first.name) > 0
    assert on(model, second.name) > 0
    assert await text_of(stage) == CHAIN


async def test_adapters_lie_beside_their_model(
    make_stage: StageMaker, weights: Path, tmp_path: Path
):
    gpu, stage = gpus()[0], make_stage()
    adapters = [
        write_reciting_adapter(tmp_path / "a.gguf", weights, "aj"),
        write_adapter(tmp_path / "b.gguf", weights, rank=64, strength=0, names=("attn_", "ffn_")),
    ]
    load = load_of(weights, [share_of(gpu)], LAYERS)
    parts = [ModelPart(PartKind.ADAPTER, str(path), "0" * 64, 0) for path in adapters]
    adapted = replace(load, model=replace(load.model, parts=parts))
    model = await loaded(stage, adapted)
    assert await text_of(stage) == "aj"
    plain = await loaded(make_stage(), load)
    assert model.size_vram - plain.size_vram > 0.9 * adapters[1].stat().st_size


async def test_what_a_gpu_holds_was_foretold(make_stage: StageMaker, weights: Path):
    gpu = gpus()[0]
    load = load_of(weights, [share_of(gpu)], LAYERS)
    measuring = make_stage()
    await measuring.start_worker()
    measuring.tell(Measure("c" * 32, load))
    measured: Measured = await measuring.inbox.wait(Measured)
    model = await loaded(make_stage(), load)
    foretold = measured.weights + measured.slots * measured.slot + measured.compute
    assert foretold == pytest.approx(model.size, rel=0.05)


async def test_memory_is_back_when_the_worker_has_exited(make_stage: StageMaker, weights: Path):
    gpu, stage = gpus()[0], make_stage()
    before = free_of(gpu)
    model = await loaded(stage, load_of(weights, [share_of(gpu)], LAYERS))
    assert free_of(gpu) < before - model.size_vram // 2
    stage.tell(Unload("the test is over"))
    assert await stage.exit_status() == 0
    wait_for(lambda: free_of(gpu) > before - 16 * MIB, "the memory is back")


def free_of(gpu: Device) -> int:
    (now,) = [device for device in discovered() if device.name == gpu.name]
    return now.free


async def test_a_worker_on_the_processors_takes_nothing_of_a_gpu(
    make_stage: StageMaker, weights: Path
):
    gpu, stage = gpus()[0], make_stage()
    before = free_of(gpu)
    model = await loaded(stage, load_of(weights, [], 0))
    assert model.size_vram == 0
    assert free_of(gpu) > before - 16 * MIB
    assert await text_of(stage) == CHAIN


async def test_workers_on_a_gpu_and_on_the_processors_work_side_by_side(
    make_stage: StageMaker, weights: Path
):
    gpu, one, other = gpus()[0], make_stage(), make_stage()
    assert (await loaded(one, load_of(weights, [share_of(gpu)], LAYERS))).size_vram > 0
    assert (await loaded(other, load_of(weights, [], 0))).size_vram == 0
    one.ask(QUESTION)
    other.ask(QUESTION)
    assert [(await stage.answer())[1] for stage in (one, other)] == [CHAIN, CHAIN]
