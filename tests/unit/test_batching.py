"""How a step is shared, and how slots are chosen: pure functions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pronk.workers.inference.batching import GRID, close_ranks, share_step
from pronk.workers.inference.slots import (
    WORTH_KEEPING,
    KeptPrefixes,
    Slot,
    choose_slot,
    common_prefix,
)

# --- sharing a step


@given(
    st.integers(GRID, 2048),
    st.integers(0, 32),
    st.lists(st.tuples(st.integers(1, 10_000), st.integers(0, 10_000)), max_size=40),
)
def test_a_step_is_never_overfull_and_always_gets_somewhere(
    batch: int, writers: int, readers: list[tuple[int, int]]
) -> None:
    writers = min(writers, batch - 1)
    remaining = [left for left, _ in readers]
    shares = share_step(batch, writers, remaining, [position for _, position in readers])
    assert sum(shares) + writers <= batch
    assert all(0 <= share <= left for share, left in zip(shares, remaining, strict=True))
    if readers:
        assert shares[0] > 0, "who came first is never passed over"


@given(st.integers(1, 10_000), st.integers(0, 10_000))
def test_chunks_end_on_the_grid_or_with_the_prompt(remaining: int, position: int) -> None:
    (share,) = share_step(512, 0, [remaining], [position])
    assert share == remaining or (position + share) % GRID == 0


def test_a_prompt_alone_gets_the_whole_step_and_beside_others_a_part() -> None:
    assert share_step(512, 0, [9000], [0]) == [512]
    assert share_step(512, 15, [9000], [0]) == [128]


def test_a_burst_of_short_prompts_is_read_at_once_and_long_ones_are_not() -> None:
    assert sum(share_step(512, 4, [4000] * 12, [0] * 12)) == 128
    assert share_step(512, 4, [40] * 12, [0] * 12) == [40] * 12
    assert sum(share_step(512, 4, [100] * 12, [0] * 12)) == 508


def test_short_prompts_are_read_beside_long_ones() -> None:
    assert share_step(512, 15, [8000, 30], [0, 0]) == [96, 30]


# --- closing gaps


@given(st.sets(st.integers(0, 40), max_size=20))
def test_after_the_moves_there_is_no_gap_and_nothing_moves_in_vain(active: set[int]) -> None:
    moves = close_ranks(active)
    after = set(active)
    for source, target in moves:
        assert source in after
        assert target not in after
        after = after - {source} | {target}
    assert len(after) == len(active)
    assert not after or max(after) - min(after) == len(after) - 1
    assert not after or min(active) <= min(after) <= max(after) <= max(active)


def test_as_little_as_possible_is_moved() -> None:
    assert close_ranks([0, 1, 2, 3]) == []
    assert close_ranks([5, 6]) == []
    assert close_ranks([0, 2, 3, 4]) == [(0, 1)] or close_ranks([0, 2, 3, 4]) == [(4, 1)]
    assert close_ranks([0, 1, 2, 9]) == [(9, 3)]
    assert len(close_ranks(range(0, 16, 2))) == 4


# --- prefixes


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_the_common_prefix_is_what_a_loop_would_find(left: list[int], right: list[int]) -> None:
    length = common_prefix(left, right)
    assert left[:length] == right[:length]
    assert length == min(len(left), len(right)) or left[length] != right[length]


def slot(number: int, tokens: list[int], *, taken: bool = False, used: int = 0) -> Slot:
    return Slot(number, tokens, taken, used)


LONG = list(range(1000))


def test_a_prompt_goes_where_it_was_before() -> None:
    slots = [slot(0, []), slot(1, LONG, used=1), slot(2, [7] * 50)]
    assert choose_slot(slots, [*LONG, 5], cuttable=True) == (slots[1], 1000)


def test_a_long_conversation_is_not_destroyed_for_a_short_common_beginning() -> None:
    slots = [slot(0, LONG, used=9), slot(1, [7] * 50, used=1)]
    chosen = choose_slot(slots, [*LONG[:100], 5], cuttable=True)
    assert chosen == (slots[1], 0)


def test_the_empty_slot_and_then_the_least_recently_used_one_is_given_away() -> None:
    slots = [slot(0, [1] * 50, used=5), slot(1, [2] * 50, used=3), slot(2, [], used=9)]
    assert choose_slot(slots, [3], cuttable=True) == (slots[2], 0)
    slots[2].taken = True
    assert choose_slot(slots, [3], cuttable=True) == (slots[1], 0)
    slots[0].taken = slots[1].taken = True
    assert choose_slot(slots, [3], cuttable=True) is None


def test_a_state_that_cannot_be_cut_serves_only_what_goes_on_from_all_of_it() -> None:
    slots = [slot(0, LONG)]
    assert choose_slot(slots, [*LONG, 5], cuttable=False) == (slots[0], 1000)
    assert choose_slot(slots, LONG[:999], cuttable=False) == (slots[0], 0)
    kept = KeptPrefixes[str](100, cuttable=False)
    kept.keep(LONG[:50], "half", 10)
    kept.keep(LONG[:100], "whole", 10)
    assert kept.longest(LONG[:99]) == (50, "half")
    assert kept.longest(LONG) == (100, "whole")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60)), max_size=60))
def test_kept_states_never_take_more_than_their_bytes(additions: list[tuple[int, int]]) -> None:
    kept = KeptPrefixes[int](100, cuttable=True)
    for what, size in additions:
        kept.keep([what] * WORTH_KEEPING, what, size)
        assert kept.size <= 100
        found = kept.longest([what] * WORTH_KEEPING)
        assert found == (WORTH_KEEPING, what)


def test_the_least_recently_used_state_is_forgotten_first() -> None:
    kept = KeptPrefixes[str](25, cuttable=True)
    kept.keep([1, 1], "one", 10)
    kept.keep([2, 2], "two", 10)
    assert kept.longest([1, 1, 5]) == (2, "one")
    kept.keep([3, 3], "three", 10)
    assert kept.longest([2, 2]) is None
    assert kept.longest([1, 1]) == (2, "one")
    kept.keep([4] * 10, "too large", 26)
    assert kept.longest([4] * 10) is None
