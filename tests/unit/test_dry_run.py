"""What a dry run foretells is what a real load takes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pronk.protocol.errors import PronkError
from pronk.protocol.messages.devices import Measure, Measured
from pronk.protocol.messages.library import ModelDetails, ModelFacts, ModelPart, PartKind
from pronk.protocol.messages.placement import CacheType, FlashAttention, Load
from pronk.workers.inference.dry_run import measure_load
from pronk.workers.inference.embedder import Embedder
from pronk.workers.inference.engine import Engine
from pronk.workers.inference.llama import Model, native_log
from pronk.workers.inference.plan import context_length, plan_context
from pronk.workers.inference.projector import load_sight
from pronk.workers.parts import adapters_of, projectors_of
from pronk.workers.store.demo import WEIGHTS
from support.adapters import write_adapter
from support.encoder_models import write_encoder
from support.models import Shape, invent_vocabulary, write_random_model
from support.recurrent import HYBRID, RECURRENT, RecurrentShape, write_recurrent_model
from support.vision_models import Kind, write_vision_model

DETAILS = ModelDetails("", "gguf", "llama", ["llama"], "1M", "F32")
MIB = 2**20

SHAPES = {
    "deep": Shape(2000, 256, 8, 8, 2, 1024, 8192),
    "many words": Shape(32_000, 256, 2, 8, 8, 512, 4096),
    "wide": Shape(3000, 768, 3, 12, 4, 2048, 16384),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(3)
    paths: dict[str, Path] = {"demo": WEIGHTS}
    for name, shape in SHAPES.items():
        paths[name] = place / f"{name}.gguf"
        write_random_model(paths[name], shape, invent_vocabulary(shape.vocabulary, rng), rng)
    return paths


def load_of(path: Path, context: int = 1024, parallel: int = 3, *adapters: Path) -> Load:
    parts = [ModelPart(PartKind.ADAPTER, str(each), "b" * 64, 0) for each in adapters]
    size = path.stat().st_size
    facts = ModelFacts("m:latest", "a" * 64, str(path), size, 0, DETAILS, parts=parts)
    return Load(facts, context, 1, parallel=parallel)


def foretold(load: Load) -> Measured:
    return measure_load(Measure("c" * 32, load))


def total(measured: Measured) -> int:
    return measured.weights + measured.slots * measured.slot + measured.compute


def taken(load: Load) -> int:
    """Bytes of all buffers of a real replica, by llama.cpp's own account."""
    model = Model(Path(load.model.weights), adapters=adapters_of(load.model.parts))
    load_sight(model, projectors_of(load.model.parts), 1)
    if model.generates:
        Engine(model, plan_context(model, load), 0).context.close()
    else:
        Embedder(model, context_length(model, load), 1).close()
    model.close()
    return native_log.allocated


@pytest.mark.parametrize(
    ("name", "context", "parallel", "batch"),
    [
        ("demo", 2048, 4, 512),
        ("demo", 300, 1, 64),
        ("deep", 4096, 4, 512),
        ("many words", 1000, 2, 256),
        ("wide", 8192, 1, 512),
        ("wide", 512, 16, 2048),
    ],
)
def test_a_replica_takes_what_was_foretold(
    models: dict[str, Path], name: str, context: int, parallel: int, batch: int
):
    load = replace(load_of(models[name], context, parallel), batch=batch)
    measured = foretold(load)
    assert measured.slots == parallel
    assert total(measured) == pytest.approx(taken(load), rel=0.05)
    assert measured.layers == 1 + (SHAPES[name].layers if name in SHAPES else 4)


@pytest.mark.parametrize("cache_type", list(CacheType))
@pytest.mark.parametrize("attention", list(FlashAttention))
def test_it_does_so_with_any_cache(
    models: dict[str, Path], cache_type: CacheType, attention: FlashAttention
):
    load = replace(load_of(models["wide"], 4096), cache_type=cache_type, flash_attention=attention)
    assert total(foretold(load)) == pytest.approx(taken(load), rel=0.05)


@pytest.mark.parametrize("shape", [RECURRENT, HYBRID], ids=["recurrent", "hybrid"])
def test_states_of_recurrent_layers_are_foretold(tmp_path: Path, shape: RecurrentShape):
    path = tmp_path / "m.gguf"
    write_recurrent_model(path, replace(shape, embedding=256, inner=512, state=64))
    load = load_of(path, 512, 8)
    measured = foretold(load)
    assert measured.slot > 0
    assert total(measured) == pytest.approx(taken(load), rel=0.05)


def test_an_encoder_is_foretold(tmp_path: Path):
    path = tmp_path / "m.gguf"
    write_encoder(path, layers=12)
    measured = foretold(load_of(path, 512, 5))
    assert (measured.slot, measured.slots) == (0, 5)
    assert total(measured) == pytest.approx(taken(load_of(path, 512, 5)), rel=0.05)


def test_adapters_are_foretold(models: dict[str, Path], tmp_path: Path):
    names = ("attn_", "ffn_")
    adapters = [
        write_adapter(tmp_path / f"{rank}.gguf", models["wide"], rank=rank, names=names)
        for rank in (16, 64)
    ]
    plain, load = load_of(models["wide"]), load_of(models["wide"], 1024, 3, *adapters)
    assert total(foretold(load)) == pytest.approx(taken(load), rel=0.05)
    sizes = sum(adapter.stat().st_size for adapter in adapters)
    assert sizes > 0.2 * total(foretold(plain))
    assert foretold(load).weights - foretold(plain).weights == sizes


@pytest.mark.parametrize("kind", list(Kind))
def test_a_projector_is_foretold(tmp_path: Path, kind: Kind):
    model = write_vision_model(tmp_path, kind, size=256)
    blind = load_of(model.weights)
    seeing = [ModelPart(PartKind.PROJECTOR, str(model.projector), "b" * 64, 0)]
    load = replace(blind, model=replace(blind.model, parts=seeing))
    without, measured = foretold(blind), foretold(load)
    tensors = model.projector.stat().st_size
    assert measured.weights - without.weights == pytest.approx(tensors, rel=0.1)
    assert measured.compute > without.compute + MIB
    assert total(measured) == pytest.approx(taken(load), rel=0.05)
    assert foretold(load) == measured


def test_the_number_of_slots_is_foretold_where_it_is_automatic(models: dict[str, Path]):
    one = foretold(load_of(models["wide"], 2048, 1)).slot
    load = replace(load_of(models["wide"], 2048, 0), slot_memory=int(2.5 * one))
    assert foretold(load).slots == 2


def test_nothing_is_taken_by_it(models: dict[str, Path]):
    program = (
        "import psutil, sys\n"
        "from pathlib import Path\n"
        "from test_dry_run import foretold, load_of, total\n"
        "process = psutil.Process()\n"
        "foretold(load_of(Path(sys.argv[2]), 512, 1))\n"
        "before = process.memory_info().rss\n"
        "measured = foretold(load_of(Path(sys.argv[1]), 16384, 8))\n"
        "print(total(measured), process.memory_info().rss - before)\n"
    )
    expected, grown = run(program, models["wide"], models["demo"])
    assert expected > 250 * MIB
    assert grown < 40 * MIB


def test_resident_memory_grows_by_what_was_foretold(models: dict[str, Path]):
    """Caches and weights are touched when a model is loaded, and buffers as far as they are used:
    memory grows at least by the former, and at most by all of it and what Python takes.
    """
    program = (
        "import psutil, sys\n"
        "from pathlib import Path\n"
        "from test_dry_run import *\n"
        "load = load_of(Path(sys.argv[1]), 8192, 4)\n"
        "process = psutil.Process()\n"
        "before = process.memory_info().rss\n"
        "model = Model(Path(sys.argv[1]))\n"
        "engine = Engine(model, plan_context(model, load), 0)\n"
        "engine.context.decode([1] * 512, list(range(512)), [0] * 512, [511])\n"
        "print(native_log.allocated, process.memory_info().rss - before)\n"
    )
    _, grown = run(program, models["wide"])
    measured = foretold(load_of(models["wide"], 8192, 4))
    assert grown > 0.95 * (measured.weights + measured.slots * measured.slot)
    assert grown < 1.05 * total(measured) + 8 * MIB


def run(program: str, *paths: Path) -> list[int]:
    """The numbers that a program prints, which finds this module and no memory taken yet."""
    here = Path(__file__)
    places = [str(here.parent), str(here.parent.parent)]
    output = subprocess.check_output(
        [sys.executable, "-c", f"import sys\nsys.path[:0] = {json.dumps(places)}\n{program}"]
        + [str(path) for path in paths],
        text=True,
        timeout=120,
    )
    return [int(number) for number in output.split()]


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no model", b"GGUF" + bytes(5000)])
def test_a_file_that_is_no_model_is_refused_without_its_path(tmp_path: Path, content: bytes):
    path = tmp_path / "secret-name.gguf"
    path.write_bytes(content)
    with pytest.raises(PronkError) as caught:
        foretold(load_of(path))
    assert "secret-name" not in caught.value.message
    assert str(tmp_path) not in caught.value.message


def test_a_context_that_fits_nowhere_is_refused_with_the_numbers(models: dict[str, Path]):
    with pytest.raises(PronkError, match=r"takes \d+\.\d GiB"):
        foretold(load_of(_trained_for(models["deep"], 2**30), 2**30, 1))


def _trained_for(path: Path, tokens: int) -> Path:
    """The same model with another length of context in its header."""
    import gguf

    longer = path.with_name("longer.gguf")
    longer.write_bytes(path.read_bytes())
    reader = gguf.GGUFReader(longer, "r+")
    field = reader.get_field("llama.context_length")
    assert field
    field.parts[field.data[0]][0] = tokens
    reader.data.flush()
    return longer
