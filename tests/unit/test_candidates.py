"""The few likeliest of many tokens are found without sorting them, and none is missed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pronk.workers.inference.candidates import MAX_CANDIDATES, likeliest


def logits(size: int, seed: int, steps: int) -> np.ndarray:
    """Random logits, of so many different values that ties are common, and some impossible."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-steps, steps, size).astype(np.float32) / 7
    values[rng.random(size) < 0.1] = -np.inf
    values[rng.integers(size)] = steps
    return values


@settings(deadline=None)
@given(
    st.integers(2048, 40_000),
    st.integers(0, 2**32),
    st.sampled_from([1, 3, 40, 1000, 10**6]),
    st.sampled_from([1, 2, 40, 104, 300, 1000]),
)
def test_nothing_that_is_missing_could_be_among_them(
    size: int, seed: int, steps: int, count: int
) -> None:
    values = logits(size, seed, steps)
    found = likeliest(values, count)
    if found is None:
        assert size < 2 * 1024 or count * 8 * 2 * 2 > size
        return
    assert len(set(found.ids.tolist())) == len(found.ids) >= min(count, np.isfinite(values).sum())
    assert (values[found.ids] == found.logits).all()
    assert (found.logits >= found.floor).all()
    others = np.delete(values, found.ids)
    assert (others < found.floor).all() or (others == -np.inf).all()
    assert found.largest == values.max()


def test_a_row_with_few_possible_tokens_gives_exactly_these() -> None:
    values = np.full(50_000, -np.inf, np.float32)
    values[[3, 20_000, 49_999]] = (1, -5, 2)
    found = likeliest(values, 40)
    assert found
    assert dict(zip(found.ids.tolist(), found.logits.tolist(), strict=True)) == {
        3: 1,
        20_000: -5,
        49_999: 2,
    }


@pytest.mark.parametrize("place", [0, 1024, 49_999])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_noticed(place: int, value: float) -> None:
    values = np.zeros(50_000, np.float32)
    values[place] = value
    found = likeliest(values, 40)
    assert found
    assert not math.isfinite(found.largest)
    assert not len(found.ids)


def test_nothing_possible_at_all_is_noticed() -> None:
    found = likeliest(np.full(50_000, -np.inf, np.float32), 40)
    assert found
    assert found.largest == -math.inf


def test_small_vocabularies_and_many_candidates_are_left_to_others() -> None:
    assert likeliest(np.zeros(2000, np.float32), 1) is None
    assert likeliest(np.zeros(150_000, np.float32), MAX_CANDIDATES + 1) is None
