"""Images among the tokens of a prompt.

Where an image stands, a prompt has a negative number for each row of the batch that the image
takes. It says which image that is and which of its rows: two prompts begin alike as far as their
numbers are the same, whether those are tokens or rows. An image counts whole: attention may go in
all directions within it, so that a part of one is of no use to anybody.

Pure arithmetic on lists of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_ROWS = 2**20
"""Rows that an image may have."""


def image_rows(key: int, count: int) -> list[int]:
    """What stands in a prompt for the `count` rows of the image that is known by `key`, at least
    0 and the same for equal images alone.
    """
    first = -1 - key * MAX_ROWS
    return list(range(first, first - count, -1))


def image_of(number: int) -> tuple[int, int]:
    """The key of the image that a negative number stands for, and which of its rows."""
    return divmod(-1 - number, MAX_ROWS)


def whole_before(numbers: Sequence[int], place: int) -> int:
    """The last place up to `place` that is not within an image."""
    if 0 <= place < len(numbers) and numbers[place] < 0:
        place -= image_of(numbers[place])[1]
    return max(place, 0)


def whole_behind(numbers: Sequence[int], place: int) -> int:
    """The first place from `place` on that is not within an image."""
    while place < len(numbers) and numbers[place] < 0 and image_of(numbers[place])[1]:
        place += 1
    return place


def stretch(numbers: Sequence[int], place: int, most: int) -> int:
    """How many numbers from `place` on are of one kind, at most so many: tokens, or rows of one
    image.
    """
    end = place + 1
    if numbers[place] < 0:
        return min(whole_behind(numbers, end) - place, most)
    while end < min(len(numbers), place + most) and numbers[end] >= 0:
        end += 1
    return end - place


def tokens_alone(numbers: Sequence[int]) -> list[int]:
    """The tokens, without the images."""
    return [number for number in numbers if number >= 0]
