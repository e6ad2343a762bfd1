from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronk.workers.store.pulling.patience import Patience, Terms
from pronk.workers.store.pulling.plan import LARGEST, SMALLEST, Plan
from pronk.workers.store.pulling.ranges import Ranges

MIB = 1024 * 1024

pairs = st.tuples(st.integers(0, 60), st.integers(0, 60))


@given(st.lists(st.tuples(st.booleans(), pairs), max_size=30))
def test_ranges_are_what_a_set_of_numbers_is(steps: list[tuple[bool, tuple[int, int]]]) -> None:
    ranges, model = Ranges(), set[int]()
    for add, (start, end) in steps:
        (ranges.add if add else ranges.remove)(start, end)
        (model.update if add else model.difference_update)(range(start, end))
    held = list(ranges)
    assert {number for start, end in held for number in range(start, end)} == model
    assert ranges.size == len(model)
    assert ranges.prefix == next(number for number in range(61) if number not in model)
    assert ranges.first == (held[0] if held else None)
    # Neighbours are one.
    assert all(start < end for start, end in held)
    assert all(left[1] < right[0] for left, right in pairwise(held))


@given(st.lists(pairs, max_size=8), st.lists(pairs, max_size=8), st.integers(0, 60))
def test_ranges_without_others_and_in_a_shorter_file(
    here: list[tuple[int, int]], others: list[tuple[int, int]], size: int
) -> None:
    def numbers(ranges: Ranges) -> set[int]:
        return {number for start, end in ranges for number in range(start, end)}

    ranges = Ranges(here)
    before = numbers(ranges)
    assert numbers(ranges.without(Ranges(others))) == before - numbers(Ranges(others))
    assert numbers(ranges.below(size)) == {number for number in before if number < size}
    assert numbers(ranges) == before


def test_pieces_come_from_the_front_in_bounded_sizes_and_get_smaller() -> None:
    plan = Plan(4096 * MIB, Ranges())
    pieces = list(iter(lambda: plan.take(8), None))
    assert pieces[0].start == 0
    assert pieces[-1].end == 4096 * MIB
    assert [piece.end for piece in pieces[:-1]] == [piece.start for piece in pieces[1:]]
    sizes = [piece.end - piece.start for piece in pieces]
    assert sizes[0] == max(sizes) == LARGEST
    assert sizes[-1] < 2 * SMALLEST
    assert all(size >= SMALLEST // 2 for size in sizes)
    assert not plan.left


def test_what_is_there_is_not_asked_for_and_what_comes_back_is() -> None:
    plan = Plan(100 * MIB, Ranges([(0, 10 * MIB), (50 * MIB, 60 * MIB)]))
    first = plan.take(8)
    assert first
    assert first.start == 10 * MIB
    plan.arrived(first.start, first.start + 100)
    plan.give_back(first)
    again = plan.take(8)
    assert again
    assert again.start == first.start + 100
    while piece := plan.take(8):
        assert piece.end <= 50 * MIB or piece.start >= 60 * MIB
        plan.arrived(piece.start, piece.end)
    assert not plan.complete
    plan.arrived(again.start, again.end)
    assert plan.complete


def test_one_connection_gets_all_of_a_gap() -> None:
    plan = Plan(1000 * MIB, Ranges([(0, 5), (600 * MIB, 700 * MIB)]))
    piece = plan.take(1)
    assert piece
    assert (piece.start, piece.end) == (5, 600 * MIB)


def test_a_stream_that_begins_at_the_front_takes_everything() -> None:
    plan = Plan(1000, Ranges([(0, 100), (500, 600)]))
    piece = plan.take_all()
    assert (piece.start, piece.end) == (100, 1000)
    assert plan.take(8) is None


def test_pauses_grow_to_a_bound_and_end() -> None:
    terms = Terms(tries=6, first_pause=1.0, longest_pause=5.0)
    patience = Patience(terms, random.Random(1))
    pauses = [patience.failed() for _ in range(6)]
    assert pauses[-1] is None
    for pause, due in zip(pauses, (1, 2, 4, 5, 5), strict=False):
        assert pause is not None
        assert due / 2 <= pause <= due


def test_progress_begins_the_count_anew_but_a_few_bytes_do_not() -> None:
    patience = Patience(Terms(tries=3, progress=1000))
    for done in (10, 20, 30):
        patience.progressed(done)
        patience.failed()
    assert patience.failed() is None
    patience = Patience(Terms(tries=3, progress=1000))
    for done in range(1000, 20_000, 1000):
        patience.progressed(done)
        assert patience.failed() is not None


@pytest.mark.parametrize(("wish", "granted"), [(3.0, True), (120.0, True), (3600.0, False)])
def test_a_registry_may_ask_for_a_pause_but_not_for_any(wish: float, granted: bool) -> None:
    pause = Patience(Terms(first_pause=0.1)).failed(wish)
    assert pause == (wish if granted else None)
