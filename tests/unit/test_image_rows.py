"""Images count whole, wherever a list of tokens and rows is cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pronk.workers.inference.pictures import Picture, Pictures
from pronk.workers.inference.rows import (
    MAX_ROWS,
    image_of,
    image_rows,
    stretch,
    tokens_alone,
    whole_before,
    whole_behind,
)
from pronk.workers.inference.shift import Shift, in_context, kept, without_parts

KEYS = st.integers(0, 2**64 - 1)
PARTS = st.lists(
    st.one_of(
        st.lists(st.integers(0, 300), max_size=6),
        st.sampled_from([image_rows(0, 1), image_rows(7, 9), image_rows(2**64 - 1, 4)]),
    ),
    max_size=8,
)


def boundaries(parts: list[list[int]]) -> set[int]:
    """Places in the joined parts that are not within an image."""
    places, length = {0}, 0
    for part in parts:
        within = part[:1] and part[0] < 0
        places |= {length + len(part)} if within else set(range(length, length + len(part) + 1))
        length += len(part)
    return places


@given(KEYS, st.integers(0, 3000))
@example(2**64 - 1, MAX_ROWS - 1)
def test_a_row_tells_its_image_and_its_place(key: int, row: int):
    number = image_rows(key, row + 1)[-1]
    assert number < 0
    assert image_of(number) == (key, row)


@given(PARTS, st.integers(0, 80))
def test_places_move_to_the_ends_of_images(parts: list[list[int]], place: int):
    numbers = [number for part in parts for number in part]
    place = min(place, len(numbers))
    good = boundaries(parts)
    assert whole_before(numbers, place) == max(p for p in good if p <= place)
    assert whole_behind(numbers, place) == min(p for p in good if p >= place)


@given(PARTS, st.integers(1, 20))
def test_stretches_are_of_one_kind_and_cover_all(parts: list[list[int]], most: int):
    numbers = [number for part in parts for number in part]
    place = 0
    while place < len(numbers):
        length = stretch(numbers, place, most)
        assert 1 <= length <= most
        part = numbers[place : place + length]
        assert all(n >= 0 for n in part) or [left - 1 for left, _ in pairwise(part)] == part[1:]
        place += length
    assert place == len(numbers)


@given(PARTS, st.integers(0, 30), st.integers(1, 30))
def test_a_shift_takes_no_part_of_an_image(parts: list[list[int]], keep: int, discard: int):
    held = [number for part in parts for number in part]
    if keep + discard > len(held):
        return
    shift = without_parts(Shift(keep, discard), held)
    assert {shift.keep, shift.keep + shift.discard} <= boundaries(parts)
    assert shift.keep <= keep
    assert shift.keep + shift.discard >= keep + discard


@given(PARTS, st.integers(1, 40), st.integers(-1, 12), st.integers(0, 60))
def test_a_context_that_is_rebuilt_never_holds_a_part_of_an_image(
    parts: list[list[int]], room: int, num_keep: int, answer: int
):
    prompt = [number for part in parts for number in part]
    length = len(prompt) + room
    keep = kept(num_keep, len(prompt), length, adds_bos=False)
    held = in_context([*prompt, *range(1000, 1000 + answer)], len(prompt), length, keep)
    assert len(held) <= length
    assert held[len(held) - min(answer, 1) :] == list(range(1000, 1000 + answer))[-1:]
    images = [tuple(part) for part in parts if part and part[0] < 0]
    rows = [number for number in held if number < 0]
    while rows:
        image = next(image for image in images if tuple(rows[: len(image)]) == image)
        rows = rows[len(image) :]


def picture(rows: int, span: int) -> Picture:
    places = np.arange(rows, dtype=np.int32)[np.newaxis]
    return Picture(np.zeros((rows, 2), np.float32), places, np.ones_like(places), span, False)


def test_what_follows_an_image_stands_as_far_behind_it_as_the_model_wants():
    prompt = [1, 2, *image_rows(3, 6), 4, 5, *image_rows(8, 4), *image_rows(3, 6), 6]
    pictures = Pictures(prompt, {3: picture(6, 3), 8: picture(4, 4)})
    assert [pictures.place(i) for i in (0, 1, 2)] == [0, 1, 2]
    assert [pictures.place(i) for i in (8, 9, 10)] == [5, 6, 7]
    assert pictures.place(14) == 11  # the second image
    assert [pictures.place(i) for i in (20, 21, 30)] == [14, 15, 24]
    assert pictures.at(prompt[3]) == (pictures.at(prompt[2])[0], 1)
    assert pictures.at(prompt[10])[1] == 0


def test_rows_of_an_image_stand_where_it_begins_or_behind():
    places = np.array([[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]], np.int32)
    moves = np.array([[1] * 4, [1] * 4, [1] * 4, [0] * 4], np.int32)
    seen = Picture(np.zeros((4, 2), np.float32), places, moves, 2, False)
    assert seen.positions(10, 1, 2).tolist() == [[10, 10], [10, 11], [11, 10], [0, 0]]


@pytest.mark.parametrize("numbers", [[], [1], image_rows(1, 3), [5, *image_rows(1, 3), 6]])
def test_tokens_alone_have_no_images(numbers: list[int]):
    assert tokens_alone(numbers) == [n for n in numbers if n >= 0]
