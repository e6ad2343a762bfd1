"""The images of one prompt as the engine reads them: rows of numbers in the place of tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .rows import image_of, stretch

Numbers = np.ndarray[Any, np.dtype[np.float32]]
Places = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """An image, or a part of one that the model takes as an image, encoded for the model."""

    numbers: Numbers
    """One row for each row of the batch."""
    places: Places
    """The positions of the rows, one line for each dimension that positions have, where the image
    begins at position 0."""
    moves: Places
    """What is added to `places` for each position that the image begins later."""
    span: int
    """Positions until what follows the image."""
    at_once: bool
    """Whether all rows see each other, and must be computed in one batch."""

    def positions(self, start: int, first: int, count: int) -> Places:
        """Those of `count` rows from `first` on, of an image that begins at position `start`."""
        rows = slice(first, first + count)
        return self.places[:, rows] + start * self.moves[:, rows]


class Pictures:
    """The images in a prompt, and what they do to the positions behind them.

    Positions of text go up by one. Where a model gives its images positions in two dimensions, an
    image takes more rows than it takes positions. Such a context is never shifted, so that its
    images stay where they are.
    """

    def __init__(self, prompt: Sequence[int], pictures: Mapping[int, Picture]) -> None:
        """`pictures` by key has all that stand in `prompt`."""
        self._pictures = pictures
        self._ends: list[int] = []
        self._lags: list[int] = []
        place = lag = 0
        while place < len(prompt):
            rows = stretch(prompt, place, len(prompt))
            if prompt[place] < 0:
                lag += rows - pictures[image_of(prompt[place])[0]].span
                if lag:
                    self._ends.append(place + rows)
                    self._lags.append(lag)
            place += rows

    def at(self, number: int) -> tuple[Picture, int]:
        """The image that a negative number of the prompt stands for, and which of its rows."""
        key, row = image_of(number)
        return self._pictures[key], row

    def place(self, index: int) -> int:
        """The position of what stands at `index` of the prompt or behind it, not in an image."""
        behind = bisect_right(self._ends, index)
        return index - self._lags[behind - 1] if behind else index
