"""Which bytes of a blob are asked for next."""

from __future__ import annotations

from dataclasses import dataclass

from .ranges import Ranges

MIB = 1024 * 1024
SMALLEST = 4 * MIB
"""Bytes of a piece below which asking takes longer than getting."""
LARGEST = 64 * MIB


@dataclass(slots=True)
class Piece:
    """Bytes that one request asks for."""

    start: int
    end: int


class Plan:
    """What of one blob is there, what is being fetched, and what is left.

    Pieces go out from the front, so that the digest, which can only be computed from the front,
    follows closely. They get smaller towards the end: no connection is left alone with a large one,
    and little is left to be digested when the last one has arrived.
    """

    def __init__(self, size: int, there: Ranges) -> None:
        self.size = size
        self.there = there
        self._left = Ranges([(0, size)]).without(there)

    @property
    def complete(self) -> bool:
        """Whether all bytes are there."""
        return self.there.size == self.size

    @property
    def left(self) -> bool:
        """Whether there are bytes that nobody fetches yet."""
        return self._left.size > 0

    def take(self, connections: int) -> Piece | None:
        """The next piece for one of so many connections; None where all are taken. A connection
        that is the only one gets everything up to what is there.
        """
        if not (first := self._left.first):
            return None
        start, end = first
        if connections == 1:
            self._left.remove(start, end)
            return Piece(start, end)
        share = self._left.size // (2 * connections)
        length = min(max(share, SMALLEST), LARGEST)
        # What would be left over is not worth a request of its own.
        end = end if end - start < length + SMALLEST // 2 else start + length
        self._left.remove(start, end)
        return Piece(start, end)

    def take_all(self) -> Piece:
        """Everything from the first missing byte on, for a stream that cannot begin elsewhere."""
        first = self._left.first
        piece = Piece(first[0] if first else self.size, self.size)
        self._left.remove(piece.start, piece.end)
        return piece

    def arrived(self, start: int, end: int) -> None:
        """The bytes from `start` to `end` are in the file."""
        self.there.add(start, end)

    def give_back(self, piece: Piece) -> None:
        """Whoever had the piece will fetch no more of it."""
        for start, end in Ranges([(piece.start, piece.end)]).without(self.there):
            self._left.add(start, end)
