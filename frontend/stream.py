"""One request's answer in pieces, on its way through the frontend.

The relay feeds it what workers and the scheduler say, and carries out what follows; a dialect takes
from it what is ready for the client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ..protocol.messages.generation import Chunk, Finished, Generate, PositionLogprobs
from .alignment import Alignment
from .exchange import Exchange, Phase

_PIECE_OVERHEAD = 64
"""Bytes that a waiting piece costs beside its text, so that empty-ish pieces are bounded, too."""


class Verdict(Enum):
    """What a message of the current attempt means for the stream."""

    GOOD = "good"
    GAP = "gap"
    """Tokens are missing before it: the attempt is lost."""
    OVERFLOW = "overflow"
    """The client has left more waiting than the bound allows."""


@dataclass(slots=True)
class Delivery:
    """All that was ready at once: pieces of text in order, and the end if it has come.

    Not frozen, because there may be one for every token, and freezing costs more than the rest.
    """

    pieces: list[str]
    finished: Finished | None
    logprobs: list[list[PositionLogprobs]] | None = None
    """Those of each piece, where there are any."""


class Stream(Exchange):
    """The answer to one request for text. It also ends by `finish`."""

    def __init__(
        self, header: Generate, body: bytes, limit: int, on_overflow: Callable[[], None]
    ) -> None:
        super().__init__(header, body)
        self.on_overflow = on_overflow
        """Cuts off a client that does not read."""
        self._limit = limit
        self._next_index = 0
        self._shown = False
        self._pieces: list[str] = []
        self._logprobs: Alignment | None = None
        self._waiting_bytes = 0
        self._finished: Finished | None = None

    def add(self, chunk: Chunk) -> Verdict:
        """Takes over what one engine step gave."""
        if chunk.index != self._next_index:
            return Verdict.GAP
        self.heard()
        self._next_index += len(chunk.tokens)
        if chunk.logprobs is not None:
            self._logprobs = self._logprobs or Alignment(len(self._pieces))
            self._waiting_bytes += self._logprobs.add(chunk.logprobs)
        if not chunk.text:
            return Verdict.GOOD
        self._shown = True
        self.body = b""
        self._pieces.append(chunk.text)
        if self._logprobs:
            self._logprobs.release(chunk.text)
        self._waiting_bytes += len(chunk.text.encode()) + _PIECE_OVERHEAD
        self._wake()
        return Verdict.OVERFLOW if self._waiting_bytes > self._limit else Verdict.GOOD

    def finish(self, finished: Finished) -> Verdict:
        """The answer is complete, unless tokens are missing from it."""
        if finished.eval_count != self._next_index:
            return Verdict.GAP
        self._finished = finished
        self._end()
        return Verdict.GOOD

    def try_again(self) -> bool:
        """Begins the next attempt, as long as nothing of this one was shown."""
        if self._shown or not super().try_again():
            return False
        self._next_index = self._waiting_bytes = 0
        self._logprobs = None
        return True

    async def take(self) -> Delivery:
        """All that is ready, as soon as something is. For one reader at a time.

        Raises the `PronkError` that ended the stream, once the text before it has been taken.
        """
        while not self._pieces and self.phase is not Phase.ENDED:
            await self._awake()
        pieces, self._pieces, self._waiting_bytes = self._pieces, [], 0
        if self._error and not pieces:
            raise self._error
        logprobs = self._logprobs.take() if self._logprobs else None
        return Delivery(pieces, self._finished, logprobs)
