"""Words that stay whole at the edge of a terminal, though they come piece by piece."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

_BLANKS = " \t"


class Wrapping:
    """Breaks lines at blanks. A word is written as soon as its letters come; one that turns out too
    long for its line is taken back and written on the next.
    """

    def __init__(self, width: Callable[[], int]) -> None:
        self._width = width
        """Cells of a line now: a window may change its size."""
        self._column = 0
        self._word = ""
        self._word_cells = 0

    def wrap(self, text: str) -> str:
        """What is to be written for the next piece of text."""
        limit = max(self._width() - 1, 1)
        return "".join(self._next(character, limit) for character in text)

    def _next(self, character: str, limit: int) -> str:
        if character == "\n":
            self._column = 0
            self._end_word()
            return character
        cells = cells_of(character, self._column)
        before = ""
        if self._column + cells > limit:
            if character in _BLANKS:
                # The blank at which the line is broken, if more comes.
                self._column = limit
                self._end_word()
                return ""
            # Scripts of wide characters break between any two of them.
            before = self._begin_line("" if cells > 1 else self._word, limit)
        self._column += cells
        if character in _BLANKS or cells > 1:
            self._end_word()
        else:
            self._word += character
            self._word_cells += cells
        return before + character

    def _begin_line(self, word: str, limit: int) -> str:
        """Begins a line, with the word that does not fit on the old one."""
        cells = self._word_cells
        if not word or cells >= self._column or cells >= limit:
            self._column = 0
            self._end_word()
            return "\n"
        self._column = cells
        return f"\x1b[{cells}D\x1b[K\n{word}"

    def _end_word(self) -> None:
        self._word, self._word_cells = "", 0


def cells_of(character: str, column: int = 0) -> int:
    """How many cells of a terminal a character takes."""
    if character == "\t":
        return 8 - column % 8
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
