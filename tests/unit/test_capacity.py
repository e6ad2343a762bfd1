"""The number of slots follows from the memory that there is."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.host import free_memory
from pronk.protocol.messages.library import ModelDetails, ModelFacts
from pronk.protocol.messages.placement import CacheType, Load
from pronk.workers.inference.capacity import (
    MOST_AUTOMATIC,
    Footprint,
    automatic_slots,
    slots_for,
)

MIB, GIB = 2**20, 2**30
DETAILS = ModelDetails("", "gguf", "llama", ["llama"], "7B", "Q8_0")
ATTENTION = Footprint(CacheType.F16, token=128 * 1024, sequence=0)
"""That of a 7 B model: a context of 4096 tokens takes 512 MiB."""


def load(parallel: int = 0, weights: int = 0, slot_memory: int = 0) -> Load:
    facts = ModelFacts("m:latest", "a" * 64, "/m", weights, 8192, DETAILS)
    return Load(facts, 4096, 1, parallel=parallel, slot_memory=slot_memory)


def test_a_slot_takes_a_whole_context_and_a_state():
    assert ATTENTION.slot(4096) == 512 * MIB
    assert ATTENTION.slot(1) == ATTENTION.slot(256) < ATTENTION.slot(257)
    recurrent = Footprint(CacheType.F16, token=0, sequence=3 * MIB)
    assert recurrent.slot(100) == recurrent.slot(10_000) == 3 * MIB


def test_an_automatic_number_takes_a_share_of_the_memory_beside_the_weights():
    assert slots_for(load(), ATTENTION, 4096, 16 * GIB) == 8
    assert slots_for(load(weights=8 * GIB), ATTENTION, 4096, 16 * GIB) == 4
    assert slots_for(load(), ATTENTION, 4096, GIB) == 1
    assert slots_for(load(), ATTENTION, 4096, 1000 * GIB) == MOST_AUTOMATIC


def test_an_operator_can_say_how_much_that_share_is():
    assert slots_for(load(slot_memory=GIB), ATTENTION, 4096, 16 * GIB) == 2
    assert slots_for(load(slot_memory=1), ATTENTION, 4096, 16 * GIB) == 1


def test_a_model_without_a_memory_has_as_many_slots_as_make_sense():
    encoder = Footprint(CacheType.F16, token=0, sequence=0)
    assert slots_for(load(), encoder, 512, GIB) == MOST_AUTOMATIC
    assert slots_for(load(parallel=200), encoder, 512, GIB) == 200


def test_a_number_that_was_asked_for_is_taken_where_it_fits(caplog: pytest.LogCaptureFixture):
    assert slots_for(load(parallel=24), ATTENTION, 4096, 16 * GIB) == 24
    assert not caplog.records


def test_a_number_that_does_not_fit_is_lowered_and_told(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        assert slots_for(load(parallel=64, weights=6 * GIB), ATTENTION, 4096, 16 * GIB) == 18
    assert "m:latest: 64 requests at a time take 32.0 GiB" in caplog.text


def test_a_context_that_does_not_fit_even_once_is_refused_with_what_to_do():
    with pytest.raises(
        PronkError, match=r"100000 tokens takes 12\.\d GiB .* smaller num_ctx"
    ) as caught:
        slots_for(load(), ATTENTION, 100_000, 10 * GIB)
    assert caught.value.code is Code.LOAD_FAILED


@given(st.integers(0, 2**50), st.integers(0, 2**50))
def test_an_automatic_number_is_never_too_large(slot: int, memory: int):
    slots = automatic_slots(slot, memory)
    assert 1 <= slots <= MOST_AUTOMATIC
    assert slots == 1 or slots * slot <= memory


def group(place: Path, limit: str, current: int, files: int = 0) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / "memory.max").write_text(f"{limit}\n")
    (place / "memory.current").write_text(f"{current}\n")
    (place / "memory.stat").write_text(f"anon 5\nactive_file {files}\ninactive_file {files}\n")


def test_free_memory_is_what_the_nearest_limit_leaves(tmp_path: Path):
    own = tmp_path / "own"
    own.write_text("1:name=systemd:/ignored\n0::/site.slice/pronk.service\n")
    root = tmp_path / "groups"
    group(root / "site.slice" / "pronk.service", "max", 10)
    host = free_memory(root, own)
    assert host > MIB
    group(root / "site.slice", "1000000", 700_000, files=50_000)
    assert free_memory(root, own) == 400_000
    group(root / "site.slice" / "pronk.service", "5000", 9000)
    assert free_memory(root, own) == 0


def test_free_memory_is_the_hosts_where_there_are_no_control_groups(tmp_path: Path):
    assert free_memory(tmp_path, tmp_path / "none") > MIB
