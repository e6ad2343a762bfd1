"""One request's answer on its way through the frontend, as a state machine without sockets.

The relay feeds it what workers and the scheduler say, and carries out what follows; a dialect takes
from it what is ready for the client.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ..protocol.errors import PronkError
from ..protocol.messages.generation import Chunk, Finished, Generate, PositionLogprobs
from .alignment import Alignment

MAX_ATTEMPTS = 2
"""How often a request is tried before the death of its worker is the client's to know."""

_PIECE_OVERHEAD = 64
"""Bytes that a waiting piece costs beside its text, so that empty-ish pieces are bounded, too."""


class Phase(Enum):
    """Where a request is in its life. `Stream` alone changes it, as its methods say."""

    WAITING = "waiting"
    """Submitted; the current attempt has not been heard of."""
    RUNNING = "running"
    """A worker has it."""
    ENDED = "ended"
    """Finished, failed or abandoned: nothing more comes."""


class Verdict(Enum):
    """What a message of the current attempt means for the stream."""

    GOOD = "good"
    GAP = "gap"
    """Tokens are missing before it: the attempt is lost."""
    OVERFLOW = "overflow"
    """The client has left more waiting than the bound allows."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """All that was ready at once: pieces of text in order, and the end if it has come."""

    pieces: list[str]
    finished: Finished | None
    logprobs: list[list[PositionLogprobs]] | None = None
    """Those of each piece, where there are any."""


class Stream:
    """The answer to one request.

    The transitions, all of them:

    - WAITING → RUNNING: `started`, the worker of the current attempt speaks
    - WAITING or RUNNING → WAITING: `try_again`, the attempt is lost and nothing was shown yet
    - WAITING or RUNNING → ENDED: `finish`, `fail`
    """

    def __init__(
        self, header: Generate, body: bytes, limit: int, on_overflow: Callable[[], None]
    ) -> None:
        self.header = header
        self.body = body
        """What a resubmission sends again; dropped once none can follow."""
        self.on_overflow = on_overflow
        """Cuts off a client that does not read."""
        self.phase = Phase.WAITING
        self.worker: str | None = None
        """The incarnation that runs the current attempt."""
        self.started_at: int | None = None
        """Monotonic nanoseconds at which the current attempt left the queue."""
        self.finished_at: int | None = None
        self._heard_at = time.monotonic()
        self._limit = limit
        self._next_index = 0
        self._shown = False
        self._pieces: list[str] = []
        self._logprobs: Alignment | None = None
        self._waiting_bytes = 0
        self._finished: Finished | None = None
        self._error: PronkError | None = None
        self._reader: asyncio.Future[None] | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Request and attempt, which everything that belongs to this stream carries."""
        return self.header.request, self.header.attempt

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing was heard for so long. Whoever hears yes asks, and is told no until the
        time is over again.
        """
        moment = time.monotonic()
        silent = moment - self._heard_at > seconds
        if silent:
            self._heard_at = moment
        return silent

    def started(self, worker: str) -> None:
        """The current attempt left the queue. Told again, it changes nothing."""
        self._heard_at = time.monotonic()
        if self.phase is Phase.WAITING:
            self.phase = Phase.RUNNING
            self.worker = worker
            self.started_at = time.monotonic_ns()

    def add(self, chunk: Chunk) -> Verdict:
        """Takes over what one engine step gave."""
        if chunk.index != self._next_index:
            return Verdict.GAP
        self._heard_at = time.monotonic()
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

    def fail(self, error: PronkError) -> None:
        """Ends the stream with an error, which comes after the text that is waiting."""
        if self.phase is not Phase.ENDED:
            self._error = error
            self._end()

    def try_again(self) -> bool:
        """Begins the next attempt after the loss of one; False where that is not possible."""
        if self.phase is Phase.ENDED or self._shown or self.header.attempt >= MAX_ATTEMPTS:
            return False
        self.header = dataclasses.replace(self.header, attempt=self.header.attempt + 1)
        self.phase = Phase.WAITING
        self.worker = None
        self._next_index = 0
        self._logprobs = None
        return True

    async def take(self) -> Delivery:
        """All that is ready, as soon as something is. For one reader at a time.

        Raises the `PronkError` that ended the stream, once the text before it has been taken.
        """
        while not self._pieces and self.phase is not Phase.ENDED:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        pieces, self._pieces, self._waiting_bytes = self._pieces, [], 0
        if self._error and not pieces:
            raise self._error
        logprobs = self._logprobs.take() if self._logprobs else None
        return Delivery(pieces, self._finished, logprobs)

    def _end(self) -> None:
        self.phase = Phase.ENDED
        self.body = b""
        self.finished_at = time.monotonic_ns()
        self._wake()

    def _wake(self) -> None:
        if self._reader and not self._reader.done():
            self._reader.set_result(None)
