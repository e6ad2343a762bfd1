"""Which log probabilities belong to which piece of an answer's text."""

from __future__ import annotations

import codecs
from collections import deque

from ..protocol.messages.generation import PositionLogprobs

_BYTES_EACH = 96
"""What a token with its log probability takes while it waits, about."""


class Alignment:
    """Holds tokens back until text of theirs is shown.

    A token belongs to the piece in which the character of its first byte is shown. Those of a stop
    text are never shown, and so never told of. Bytes become characters exactly as in the worker.
    """

    def __init__(self, pieces: int) -> None:
        """`pieces` without any are waiting to be taken."""
        self._waiting: deque[tuple[int, PositionLogprobs]] = deque()
        """Tokens with the place of their first character in the answer."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._told = 0
        self._shown = 0
        self._of_pieces: list[list[PositionLogprobs]] = [[] for _ in range(pieces)]

    def add(self, positions: list[PositionLogprobs]) -> int:
        """Takes over the next tokens; returns the bytes that they take."""
        for position in positions:
            self._waiting.append((self._told, position))
            self._told += len(self._decoder.decode(position.chosen.piece))
        return sum(_BYTES_EACH * (1 + len(position.top)) for position in positions)

    def release(self, text: str) -> None:
        """The next piece of text is to be shown."""
        self._shown += len(text)
        shown: list[PositionLogprobs] = []
        while self._waiting and self._waiting[0][0] < self._shown:
            shown.append(self._waiting.popleft()[1])
        self._of_pieces.append(shown)

    def take(self) -> list[list[PositionLogprobs]]:
        """Those of each piece released since the last time."""
        taken, self._of_pieces = self._of_pieces, []
        return taken
