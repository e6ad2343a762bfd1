"""With what a model is loaded: request before Modelfile before setting."""

from __future__ import annotations

from typing import Any

import pytest

from pronk.protocol.messages.library import ModelDetails, ModelFacts
from pronk.protocol.messages.placement import CacheType, FlashAttention
from pronk.protocol.settings import MOST_PARALLEL, Settings, load_settings
from pronk.scheduler.policies.loading import context_for, load_of, unusable_parameters

DETAILS = ModelDetails("", "gguf", "llama", ["llama"], "1M", "Q8_0")


def model(trained: int = 32768, **parameters: Any) -> ModelFacts:
    return ModelFacts("m:latest", "a" * 64, "/m", 10, trained, DETAILS, parameters)


def settings(**changes: Any) -> Settings:
    return load_settings(state="/tmp/s", threads=8, **changes)


def test_the_context_is_the_requests_then_the_modelfiles_then_the_settings():
    assert context_for(model(num_ctx=8192), 1024, 4096) == 1024
    assert context_for(model(num_ctx=8192), None, 4096) == 8192
    assert context_for(model(), None, 4096) == 4096


def test_no_context_is_larger_than_the_model_was_trained_for_where_its_file_says_so():
    assert context_for(model(2048), 100_000, 4096) == 2048
    assert context_for(model(2048, num_ctx=100_000), None, 4096) == 2048
    assert context_for(model(0), 100_000, 4096) == 100_000


def test_a_model_is_loaded_as_the_settings_say():
    load = load_of(
        model(),
        4096,
        settings(
            PRONK_NUM_PARALLEL=4,
            PRONK_KV_CACHE_TYPE="q8_0",
            PRONK_FLASH_ATTENTION="on",
            slot_memory="1GiB",
            cache_memory=0,
            num_batch=256,
        ),
    )
    assert (load.context_length, load.threads, load.parallel, load.batch) == (4096, 8, 4, 256)
    assert (load.slot_memory, load.cache_memory) == (1 << 30, 0)
    assert (load.cache_type, load.flash_attention) == (CacheType.Q8_0, FlashAttention.ON)


def test_its_modelfile_wins_over_the_settings():
    load = load_of(model(num_parallel=2, num_batch=64.0), 4096, settings(PRONK_NUM_PARALLEL=4))
    assert (load.parallel, load.batch) == (2, 64)
    assert load_of(model(num_parallel=0), 4096, settings(PRONK_NUM_PARALLEL=4)).parallel == 0


def test_a_modelfile_takes_no_more_threads_than_the_operator_gives():
    assert load_of(model(num_thread=2), 4096, settings()).threads == 2
    assert load_of(model(num_thread=1000), 4096, settings()).threads == 8
    assert load_of(model(num_thread=0), 4096, settings()).threads == 8


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_ctx", 0),
        ("num_ctx", 2**40),
        ("num_ctx", "8192"),
        ("num_ctx", [8192]),
        ("num_ctx", float("nan")),
        ("num_parallel", -1),
        ("num_parallel", MOST_PARALLEL + 1),
        ("num_batch", True),
        ("num_batch", 0.5),
        ("num_thread", None),
    ],
)
def test_a_parameter_without_a_meaning_is_ignored_and_told(name: str, value: Any):
    odd = model(**{name: value})
    assert context_for(odd, None, 4096) == 4096
    load, usual = load_of(odd, 4096, settings()), load_of(model(), 4096, settings())
    assert (load.parallel, load.batch, load.threads) == (usual.parallel, usual.batch, usual.threads)
    (line,) = unusable_parameters(odd)
    assert line.startswith(f"{name} is ")
    assert unusable_parameters(model(num_ctx=1, num_predict=-7, stop=["x"])) == []
