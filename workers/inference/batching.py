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


def share_step(
    batch: int, writers: int, remaining: Sequence[int], positions: Sequence[int]
) -> list[int]:
    """How many tokens of each prompt the next step computes.

    `writers` sequences compute one token each; of `remaining[i]` tokens of a prompt, the first
    stands at `positions[i]`; prompts are in the order of their arrival. The shortest goes first,
    what it leaves over goes to the longer ones: a short prompt is not read later because a long one
    is there. The one that came first gets something in any case.
    """
    room = batch - writers
    for_long = min(room, max(batch // BESIDE_WRITERS, GRID)) if writers else room
    shares = [0] * len(remaining)
    order = sorted(range(len(remaining)), key=lambda i: remaining[i])
    reserved = min(remaining[0], GRID, room) if remaining else 0
    for place, i in enumerate(order):
        if i == 0:
            reserved = 0
        mine = room - reserved
        if remaining[i] > SHORT:
            mine = max(min(mine, for_long - sum(shares)), GRID if i == 0 else 0)
            mine = min(mine, room)
        share = min(remaining[i], max(mine // (len(order) - place), min(SHORT, mine)))
        if share < remaining[i]:
            end = (positions[i] + share) // GRID * GRID
            if end > positions[i]:
                share = end - positions[i]
        shares[i] = share
        room -= share
    return shares


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
