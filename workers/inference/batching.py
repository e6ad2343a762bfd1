"""What one step computes, and where its sequences lie: pure functions of their lengths."""

from __future__ import annotations

from collections.abc import Collection, Sequence

GRID = 32
"""Chunks of prompts end, and reused prefixes are cut, at multiples of this many tokens: the same
prompt is then mostly computed in the same shapes, which makes equal texts likelier."""

BESIDE_WRITERS = 4
"""While others generate, long prompts get one `BESIDE_WRITERS`th of a batch each step: everybody's
next token waits for what is read."""

SHORT = 128
"""Tokens up to which a prompt is read in one piece, where there is room. Reading many of them at
once costs the others a step; reading them in parts would cost every one of them several."""

PART = 8
"""What each further part of a step costs, in rows: 5 measured with the 0.5 B model on two cores, 9
with the 12 M one; more where rows are cheaper."""


def share_step(
    batch: int, writers: int, remaining: Sequence[int], positions: Sequence[int]
) -> list[int]:
    """How many tokens of each prompt the next step computes.

    `writers` sequences compute one token each; of `remaining[i]` tokens of a prompt, the first
    stands at `positions[i]`; prompts are in the order of their arrival. Short ones go first, whole
    or not at all, then the others from the shortest on: a short prompt is not read later because a
    long one is there. The one that came first gets something in any case.
    """
    room = batch - writers
    shares = [0] * len(remaining)
    short = [i for i, left in enumerate(remaining) if left <= SHORT]
    long = [i for i, left in enumerate(remaining) if left > SHORT]
    long.sort(key=lambda i: remaining[i])
    for_short = room - room // 16 - (GRID if 0 in long else 0)  # a little is left for `padding`
    for i in short:
        if i and remaining[i] > for_short:
            break
        shares[i] = min(remaining[i], room)
        for_short -= shares[i]
        room -= shares[i]
    for_long = room
    if writers:
        for_long = min(room, max(batch // BESIDE_WRITERS, GRID) - sum(shares))
    for place, i in enumerate(long):
        least = min(GRID, room) if i == 0 else 0
        others = GRID if 0 in long[place + 1 :] else 0
        mine = max(for_long - others, least)
        share = min(remaining[i], max(mine // (len(long) - place), min(SHORT, mine)))
        if share < remaining[i]:
            end = (positions[i] + share) // GRID * GRID
            if end > positions[i]:
                share = end - positions[i]
        shares[i] = share
        for_long -= share
    return shares


def padding(
    slots: Sequence[int], counts: Sequence[int], most: Sequence[int], room: int
) -> list[int]:
    """How many rows to compute in vain behind each portion of a step, so that the step takes less.

    Portion i is `counts[i]` rows of slot `slots[i]`, ascending, and may be made `most[i]` rows
    long; `room` rows can be added in all. llama.cpp computes a step in parts, in which neighbours
    have equally many rows: prompts of nearly the same length would end in many small parts.
    """
    best = [0] * len(counts)
    cheapest = PART * count_parts(slots, counts)
    for gap in (1, 2, 4, 8, 16, 32, 64):
        added = _raise(counts, most, gap)
        rows = sum(added)
        if 0 < rows <= room:
            padded = [count + more for count, more in zip(counts, added, strict=True)]
            cost = PART * count_parts(slots, padded) + rows
            if cost < cheapest:
                best, cheapest = added, cost
    return best


def _raise(counts: Sequence[int], most: Sequence[int], gap: int) -> list[int]:
    """What makes each portion as long as the longest one that is at most `gap` rows longer, as far
    as it may be that long.
    """
    targets: dict[int, int] = {}
    target = max(counts, default=0)
    for count in sorted(set(counts), reverse=True):
        if target - count > gap:
            target = count
        targets[count] = target
    pairs = zip(counts, most, strict=True)
    return [targets[count] - count if targets[count] <= limit else 0 for count, limit in pairs]


def count_parts(slots: Sequence[int], counts: Sequence[int]) -> int:
    """The parts in which llama.cpp computes a step: of the first slot that has rows left and of
    those right behind it, as many rows as all of them have (`llama_batch_allocr::split_equal`).
    """
    left = list(counts)
    parts = first = 0
    while True:
        while first < len(left) and not left[first]:
            first += 1
        if first == len(left):
            return parts
        end = first + 1
        while end < len(left) and left[end] and slots[end] == slots[end - 1] + 1:
            end += 1
        rows = min(left[first:end])
        for index in range(first, end):
            left[index] -= rows
        parts += 1


def close_ranks(active: Collection[int]) -> list[tuple[int, int]]:
    """Moves, as pairs (from, to), after which the numbers in `active` follow each other.

    With a stream per slot only neighbours are computed together. The window that already holds
    most of them stays, so that as little as possible is moved.
    """
    numbers = sorted(active)
    count = len(numbers)
    if not count or numbers[-1] - numbers[0] < count:
        return []
    starts = [number for number in numbers if number + count - 1 <= numbers[-1]]

    def inside(start: int) -> int:
        return sum(start <= number < start + count for number in numbers)

    window = range(start := max([numbers[-1] - count + 1, *starts], key=inside), start + count)
    outside = [number for number in numbers if number not in window]
    holes = sorted(set(window).difference(numbers))
    return list(zip(outside, holes, strict=True))
