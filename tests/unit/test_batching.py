"""How a step is shared, and how slots are chosen: pure functions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pronk.workers.inference.batching import (
    GRID,
    PART,
    close_ranks,
    count_parts,
    padding,
    share_step,
)
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
    assert share_step(512, 4, [40] * 11, [0] * 11) == [40] * 11
    assert share_step(512, 4, [100] * 12, [0] * 12) == [100] * 4 + [0] * 8


def test_short_prompts_are_read_beside_long_ones() -> None:
    assert share_step(512, 15, [8000, 30], [0, 0]) == [96, 30]


def test_a_short_prompt_is_read_whole_or_later() -> None:
    assert share_step(512, 4, [9000, *[100] * 6], [0] * 7) == [GRID, *[100] * 4, 0, 0]


# --- evening a step out


def test_llama_cpp_computes_neighbours_together_as_far_as_they_are_equally_long() -> None:
    assert count_parts([0, 1, 2, 3], [1, 1, 1, 1]) == 1
    assert count_parts([0, 2, 4, 6], [1, 1, 1, 1]) == 4
    assert count_parts([0, 1, 2], [1, 24, 24]) == 2
    assert count_parts([0, 1, 2], [20, 24, 22]) == 3
    assert count_parts([], []) == 0


def test_prompts_of_nearly_the_same_length_are_made_equally_long() -> None:
    slots, counts = [3, 4, 5, 6, 7], [1, 20, 24, 21, 23]
    added = padding(slots, counts, [1, 999, 999, 999, 999], 100)
    assert added == [0, 4, 0, 3, 1]
    assert padding(slots, counts, [1, 999, 999, 999, 999], 7) != added, "there is no room"
    assert padding(slots, counts, counts, 100) == [0] * 5, "nothing may be longer"


def test_what_costs_more_than_it_saves_is_left_alone() -> None:
    assert padding([0, 1], [20, 20 + 2 * PART], [999, 999], 100) == [0, 0]
    assert padding([0, 2], [20, 21], [999, 999], 100) == [0, 0], "they are no neighbours"


@given(
    st.lists(st.tuples(st.integers(1, 2), st.integers(1, 200), st.integers(0, 200)), max_size=30),
    st.integers(0, 400),
)
def test_padding_never_costs_more_and_keeps_to_its_bounds(
    portions: list[tuple[int, int, int]], room: int
) -> None:
    slots, number = list[int](), 0
    for distance, _, _ in portions:
        number += distance
        slots.append(number)
    counts = [count for _, count, _ in portions]
    most = [count + more for _, count, more in portions]
    added = padding(slots, counts, most, room)
    padded = [count + more for count, more in zip(counts, added, strict=True)]
    assert sum(added) <= room
    assert all(
        count <= now <= limit for count, now, limit in zip(counts, padded, most, strict=True)
    )
    saved = count_parts(slots, counts) - count_parts(slots, padded)
    assert saved * PART > sum(added) or not any(added)


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
