"""Weights quantized by llama.cpp in a process of its own, as a part of making a model."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import psutil
import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.workers.store.creating.levels import file_type, parse_level
from pronk.workers.store.gguf_metadata import read_header
from support.calls import until
from support.creating import Workshop
from support.gguf_files import small_gguf
from support.models import write_reciting_model


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path / "models")


@pytest.fixture
def weights(shop: Workshop, tmp_path: Path) -> str:
    """Of a model that llama.cpp can load, in F32."""
    write_reciting_model(tmp_path / "model.gguf", ["hello"])
    return shop.upload(tmp_path / "model.gguf")


def unfinished(shop: Workshop) -> list[Path]:
    return list((shop.root / ".pronk/scratch").iterdir())


async def test_a_model_is_quantized_and_says_how_far_it_is(shop: Workshop, weights: str) -> None:
    await shop.make("small", files={"x": weights}, quantize="q8_0", system="Be brief.")
    (model, _) = shop.manifest("small")["layers"]
    assert shop.config("small")["file_type"] == "Q8_0"
    assert shop.config("small")["model_family"] == "llama"
    path = shop.root / "blobs" / model["digest"].replace(":", "-")
    header = read_header(path, verbose=True)
    assert header.missing_bytes == 0
    assert {t.type for t in header.tensors if len(t.shape) > 1} == {"Q8_0"}
    assert model["digest"] != f"sha256:{weights}"
    assert shop.content(model)

    told = [line for line in shop.lines if line[0] == "quantizing F32 model to Q8_0"]
    total = (shop.writer.find(weights) or Path()).stat().st_size
    assert {(digest, of) for _, digest, of, _ in told} == {(f"sha256:{weights}", total)}
    done = [completed or 0 for *_, completed in told]
    assert done[0] == 0
    assert done[-1] == total
    assert done == sorted(done)
    assert len(set(done)) > 2
    assert shop.statuses[-4] == f"creating new layer {model['digest']}"
    assert unfinished(shop) == []


async def test_one_model_is_quantized_after_the_other(shop: Workshop, weights: str) -> None:
    shop.quantizing = asyncio.Lock()
    await shop.quantizing.acquire()  # by another one
    task = asyncio.create_task(shop.make("small", files={"x": weights}, quantize="q8_0"))
    await until(lambda: "quantizing F32 model to Q8_0" in shop.statuses)
    assert unfinished(shop) == []
    shop.quantizing.release()
    await task
    assert shop.config("small")["file_type"] == "Q8_0"
    assert not shop.quantizing.locked()


async def test_a_model_that_is_so_already_stays_as_it_is(shop: Workshop, weights: str) -> None:
    await shop.make("same", files={"x": weights}, quantize="F32")
    assert shop.manifest("same")["layers"][0]["digest"] == f"sha256:{weights}"


async def test_quantized_weights_are_not_quantized_again(shop: Workshop, weights: str) -> None:
    await shop.make("small", files={"x": weights}, quantize="Q8_0")
    with pytest.raises(PronkError, match="Q8_0 already; only models in F32, F16 or BF16"):
        await shop.make("smaller", from_model="small", quantize="q4_0")


async def test_weights_that_llama_cpp_cannot_load_are_refused_with_its_reason(
    shop: Workshop, tmp_path: Path
) -> None:
    # A whole file, of an architecture that llama.cpp has not heard of.
    strange = shop.upload(small_gguf(tmp_path / "strange", "strange"))
    before = shop.snapshot()
    with pytest.raises(PronkError) as caught:
        await shop.make("new", files={"x": strange}, quantize="q8_0")
    assert caught.value.code is Code.INVALID_REQUEST
    assert "cannot be quantized: unknown model architecture: 'strange'" in caught.value.message
    assert "/" not in caught.value.message
    assert shop.snapshot() == before
    assert unfinished(shop) == []


async def test_a_model_that_aborts_llama_cpp_ends_that_process_alone(
    shop: Workshop, tmp_path: Path
) -> None:
    numbers = {"context_length": 128, "embedding_length": 64, "feed_forward_length": 32}
    heads = {"head_count": 4, "head_count_kv": 4, "layer_norm_rms_epsilon": 1e-5}
    metadata: dict[str, int | float] = {f"llama.{name}": value for name, value in numbers.items()}
    metadata |= {f"llama.attention.{name}": value for name, value in heads.items()}
    # As many layers as there cannot be: an assertion of llama.cpp's, which ends its process.
    metadata |= {"llama.rope.dimension_count": 16, "llama.block_count": 2**31 - 1}
    hostile = shop.upload(small_gguf(tmp_path / "hostile", metadata=metadata))
    before = shop.snapshot()
    with pytest.raises(PronkError) as caught:
        await shop.make("new", files={"x": hostile}, quantize="q8_0")
    assert caught.value.code is Code.INVALID_REQUEST
    assert "cannot be quantized: it made the process that read it fail" in caught.value.message
    assert shop.snapshot() == before
    assert unfinished(shop) == []


async def test_what_does_not_fit_on_the_disk_is_not_begun(
    shop: Workshop, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pronk.workers.store.writing.free_bytes", lambda path: 4096)
    with pytest.raises(PronkError) as caught:
        await shop.make("small", files={"x": weights}, quantize="q4_0")
    assert caught.value.code is Code.STORAGE_FULL
    assert unfinished(shop) == []


async def test_one_that_is_cancelled_leaves_no_process_and_no_file(
    shop: Workshop, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def require_room(size: int) -> None:
        loop.call_soon_threadsafe(asked.set)
        answer.wait(60)

    monkeypatch.setattr(shop.writer, "require_room", require_room)
    task = asyncio.create_task(shop.make("small", files={"x": weights}, quantize="q4_0"))
    await asyncio.wait_for(asked.wait(), 60)
    children = psutil.Process().children()
    (process,) = [child for child in children if "quantize_file" in str(child.cmdline())]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    answer.set()
    assert not process.is_running()
    assert unfinished(shop) == []
    assert shop.listed() == []


@pytest.mark.parametrize(
    ("text", "level", "number"),
    [
        *(("q4_K_M", "Q4_K_M", 15), ("Q4_k_s", "Q4_K_S", 14), ("q4_k", "Q4_K_M", 15)),
        *(("q8_0", "Q8_0", 7), ("f16", "F16", 1), ("fp16", "F16", 1), ("F32", "F32", 0)),
        *(("q2_K", "Q2_K", 10), ("q6_K", "Q6_K", 18), ("q4_0", "Q4_0", 2), ("bf16", "BF16", 32)),
    ],
)
def test_levels_go_by_the_names_that_ollama_has(text: str, level: str, number: int) -> None:
    assert parse_level(text) == level
    assert file_type(level) == number
