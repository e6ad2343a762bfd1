"""What a model is said to need for remembering is what llama.cpp then takes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from pronk.protocol.messages.library import ModelDetails, ModelFacts
from pronk.protocol.messages.placement import CacheType, FlashAttention, Load
from pronk.workers.inference.footprint import measure, set_cache
from pronk.workers.inference.llama import Model, native_log
from pronk.workers.store.demo import WEIGHTS
from support.models import write_reciting_model
from support.recurrent import HYBRID, RECURRENT, RecurrentShape, write_recurrent_model

DETAILS = ModelDetails("", "gguf", "llama", ["llama"], "1M", "F32")


@pytest.fixture(scope="module")
def demo() -> Iterator[Model]:
    model = Model(WEIGHTS)
    yield model
    model.close()


def load(
    cache_type: CacheType = CacheType.F16, attention: FlashAttention = FlashAttention.AUTO
) -> Load:
    facts = ModelFacts("m:latest", "a" * 64, "/m", 0, 0, DETAILS)
    return Load(facts, 512, 1, cache_type=cache_type, flash_attention=attention)


def taken(model: Model, slots: int, context_length: int, cache_type: CacheType) -> int:
    """Bytes that a real context's cache and states take, as llama.cpp counts them."""
    params: Any = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_seq_max = slots * context_length, slots
    params.n_batch = params.n_ubatch = 64
    set_cache(params, cache_type, FlashAttention.AUTO)
    with native_log.apart():
        context = llama_cpp.llama_init_from_model(model.handle, params)
        assert context
        llama_cpp.llama_free(context)
        return native_log.buffers("KV") + native_log.buffers("RS")


@pytest.mark.parametrize("cache_type", list(CacheType))
def test_slots_take_what_was_measured(demo: Model, cache_type: CacheType):
    footprint = measure(demo, load(cache_type))
    assert footprint.cache_type is cache_type
    actual = taken(demo, 3, 1000, cache_type)
    assert 3 * footprint.slot(1000) == pytest.approx(actual, rel=0.02)


@pytest.mark.parametrize("shape", [RECURRENT, HYBRID], ids=["recurrent", "hybrid"])
def test_the_state_of_a_recurrent_model_is_counted_once_for_each_slot(
    tmp_path: Path, shape: RecurrentShape
):
    path = tmp_path / "m.gguf"
    # Large enough for llama.cpp's accounts, which are in hundredths of a MiB.
    write_recurrent_model(path, replace(shape, embedding=256, inner=512, state=64))
    model = Model(path)
    footprint = measure(model, load())
    assert footprint.sequence > 0
    assert bool(footprint.token) is shape.hybrid
    actual = taken(model, 8, 512, CacheType.F16)
    assert 8 * footprint.slot(512) == pytest.approx(actual, rel=0.05)
    model.close()


def test_a_quantized_cache_is_smaller(demo: Model):
    sizes = [measure(demo, load(cache_type)).token for cache_type in CacheType]
    assert sizes[0] > 1.8 * sizes[1] > 3.2 * sizes[2]


def test_measuring_leaves_the_accounts_of_the_replica_as_they_were(demo: Model):
    before = native_log.allocated
    measure(demo, load())
    assert native_log.allocated == before > 0


def test_a_cache_type_that_the_model_cannot_have_gives_way_to_f16(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "m.gguf"
    write_reciting_model(path, ["abc"])  # its heads have 72 numbers, which are no blocks of 32
    model = Model(path)
    with caplog.at_level(logging.WARNING):
        assert measure(model, load(CacheType.Q8_0)).cache_type is CacheType.F16
    assert "m:latest: its KV cache cannot be q8_0 and is f16" in caplog.text
    model.close()


def test_a_quantized_cache_without_flash_attention_gives_way_to_f16(demo: Model):
    footprint = measure(demo, load(CacheType.Q4_0, FlashAttention.OFF))
    assert footprint.cache_type is CacheType.F16
