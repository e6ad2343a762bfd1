"""Which log probabilities belong to which piece of an answer."""

from __future__ import annotations

import codecs
from collections import deque

from ..protocol.messages.generation import PositionLogprobs

_BYTES_EACH = 96
"""What a token with its log probability takes while it waits, about."""


class Alignment:
    """Holds tokens back until a piece is shown that they belong to.

    Where an answer is all text, a token belongs to the piece in which the character of its first
    byte is shown. Those of a stop text are never shown, and so never told of. Bytes become
    characters exactly as in the worker.

    Where a worker tells thinking and calls from text, it says itself how many tokens are to be told
    of: they come with the next piece of any kind, those of markers, too.
    """

    def __init__(self, pieces: int) -> None:
        """`pieces` without any are waiting to be taken."""
        self._waiting: deque[tuple[int, PositionLogprobs]] = deque()
        """Tokens with the place of their first character in the answer."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._told = 0
        self._shown = 0
        self._due: int | None = None
        """Tokens of the answer that are to be told of, where the worker says it."""
        self._released = 0
        """Tokens that went to a piece."""
        self._of_pieces: list[list[PositionLogprobs]] = [[] for _ in range(pieces)]

    def add(self, positions: list[PositionLogprobs], due: int | None = None) -> int:
        """Takes over the next tokens, and how many of all are to be told of, where that is said;
        returns the bytes that they take.
        """
        for position in positions:
            self._waiting.append((self._told, position))
            self._told += len(self._decoder.decode(position.chosen.piece))
        if due is not None:
            self._due = due
        return sum(_BYTES_EACH * (1 + len(position.top)) for position in positions)

    def release(self, text: str) -> None:
        """The next piece is to be shown, with so much text."""
        self._shown += len(text)
        shown: list[PositionLogprobs] = []
        if self._due is None:
            while self._waiting and self._waiting[0][0] < self._shown:
                shown.append(self._waiting.popleft()[1])
        else:
            while self._waiting and self._released + len(shown) < self._due:
                shown.append(self._waiting.popleft()[1])
        self._released += len(shown)
        self._of_pieces.append(shown)

    @property
    def remains(self) -> bool:
        """Whether there are tokens to be told of that no piece was shown for."""
        return self._due is not None and bool(self._waiting) and self._released < self._due

    def take(self) -> list[list[PositionLogprobs]]:
        """Those of each piece released since the last time."""
        taken, self._of_pieces = self._of_pieces, []
        return taken
