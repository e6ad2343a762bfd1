"""How much of a full context is kept, and how long an answer may become."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronk.workers.inference.shift import (
    Shift,
    answer_limit,
    in_context,
    kept,
    plan_shift,
    prompt_limit,
)


@pytest.mark.parametrize(
    ("num_keep", "adds_bos", "expected"),
    [
        (None, False, 4),
        (None, True, 5),
        (0, False, 0),
        (0, True, 1),
        (-1, True, 50),
        (-1, False, 50),
        (98, True, 99),
        (10**9, False, 99),
    ],
)
def test_what_is_kept(num_keep: int | None, adds_bos: bool, expected: int) -> None:
    assert kept(num_keep, 50, 100, adds_bos=adds_bos) == expected


def test_half_of_what_is_not_kept_goes() -> None:
    assert plan_shift(100, 100, 4) == Shift(4, 48)
    assert plan_shift(100, 100, 0) == Shift(0, 50)
    assert plan_shift(100, 100, 99) == Shift(99, 1)
    assert plan_shift(90, 100, 4) == Shift(4, 38)
    assert plan_shift(100, 100, 4).discard == 100 - prompt_limit(100, 4)


@given(st.integers(1, 300), st.integers(-1, 400), st.booleans())
def test_a_shift_always_makes_room_and_never_takes_what_is_kept(
    context_length: int, num_keep: int, adds_bos: bool
) -> None:
    keep = kept(num_keep, context_length, context_length, adds_bos=adds_bos)
    shift = plan_shift(context_length, context_length, keep)
    assert shift.keep == keep
    assert 1 <= shift.discard <= context_length - keep


def test_a_context_shifts_as_the_answer_grows() -> None:
    tokens = list(range(30))
    assert in_context(tokens[:10], 6, 10, 2) == tokens[:10]
    assert in_context(tokens[:11], 6, 10, 2) == [0, 1, 6, 7, 8, 9, 10]
    assert in_context(tokens[:14], 6, 10, 2) == [0, 1, *range(6, 14)]
    assert in_context(tokens[:15], 6, 10, 2) == [0, 1, *range(10, 15)]


@given(st.integers(2, 40), st.integers(0, 200), st.integers(0, 39), st.data())
def test_an_answer_that_is_taken_over_finds_the_same_context(
    context_length: int, answer: int, keep: int, data: st.DataObject
) -> None:
    keep = min(keep, context_length - 1)
    prompt_length = data.draw(st.integers(1, context_length - 1))
    tokens = list(range(prompt_length + answer))
    held = tokens[:prompt_length]
    for token in tokens[prompt_length:]:
        if len(held) == context_length:
            shift = plan_shift(len(held), context_length, keep)
            del held[shift.keep : shift.keep + shift.discard]
        held.append(token)
    assert in_context(tokens, prompt_length, context_length, keep) == held


@pytest.mark.parametrize(
    ("num_predict", "shift", "expected"),
    [
        (None, True, 1000),
        (-1, True, 1000),
        (0, True, 1000),
        (-2, True, 70),
        (5, True, 5),
        (999, True, 999),
        (1001, True, 1000),
        (None, False, 70),
        (-1, False, 70),
        (-2, False, 70),
        (5, False, 5),
        (71, False, 70),
    ],
)
def test_an_answer_ends(num_predict: int | None, shift: bool, expected: int) -> None:
    assert answer_limit(num_predict, 100, 30, shift) == expected
