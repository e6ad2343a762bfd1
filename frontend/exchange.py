"""One request on its way through the frontend, as a state machine without sockets.

What every kind of request has in common: attempts, the worker that has it, its end. `stream` adds
an answer that comes in pieces; `Answer` here is one that comes whole.

An attempt that is lost is followed by another one, which goes on where it stood. A request that
kills its workers is told from one that stood beside it: the scheduler says whether a death is to be
counted, and the second one in a row ends the request.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from enum import Enum

from ..protocol.errors import PronkError
from ..protocol.messages.embedding import Embed, Embedded
from ..protocol.messages.generation import Generate

FATAL_DEATHS = 2
"""Workers that may die of a request, with nothing gained between them, before it counts as the
reason."""

MAX_ATTEMPTS = 20
"""How often a request is tried in all, however its attempts were lost: one that gets no further
than this takes more from others than they owe it."""


class Phase(Enum):
    """Where a request is in its life. `Exchange` alone changes it, as its methods say."""

    WAITING = "waiting"
    """Submitted; the current attempt has not been heard of."""
    RUNNING = "running"
    """A worker has it."""
    ENDED = "ended"
    """Finished, failed or abandoned: nothing more comes."""


class Exchange:
    """A request and its answer.

    The transitions, all of them:

    - WAITING → RUNNING: `started`, the worker of the current attempt speaks
    - WAITING or RUNNING → WAITING: `try_again`, the attempt is lost
    - WAITING or RUNNING → ENDED: `fail`, or what the kind of answer has for its end
    """

    def __init__(self, header: Generate | Embed, body: bytes) -> None:
        self.header = header
        self.body = body
        """What the current attempt was submitted with; dropped once none can follow."""
        self.size = len(body)
        """Bytes of the first attempt's body."""
        self.phase = Phase.WAITING
        self.worker: str | None = None
        """The incarnation that runs the current attempt."""
        self.started_at: int | None = None
        """Monotonic nanoseconds at which the attempt with the first token, or the current one where
        there is none yet, left the queue."""
        self.finished_at: int | None = None
        self._deaths = 0
        """Of its workers, as far as they count against it, since it last got further."""
        self._heard_at = time.monotonic()
        self._error: PronkError | None = None
        self._reader: asyncio.Future[None] | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Request and attempt, which everything that belongs to this exchange carries."""
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

    def heard(self) -> None:
        """Its worker said something."""
        self._heard_at = time.monotonic()

    def started(self, worker: str) -> None:
        """The current attempt left the queue. Told again, it changes nothing."""
        self.heard()
        if self.phase is Phase.WAITING:
            self.phase = Phase.RUNNING
            self.worker = worker
            if not self._began_before:
                self.started_at = time.monotonic_ns()

    def fail(self, error: PronkError) -> None:
        """Ends the exchange with an error, which comes after what is waiting to be read."""
        if self.phase is not Phase.ENDED:
            self._error = error
            self._end()

    def try_again(self, *, died: bool = False, alone: bool = False) -> bool:
        """Begins the next attempt after the loss of one; False where none may follow.

        `died` says that its worker died with it, `alone` that this counts against it.
        """
        if self.phase is Phase.ENDED:
            return False
        if self._got_further:
            self._deaths = 0
        self._deaths += died and alone
        if self.blamed or self.header.attempt >= MAX_ATTEMPTS:
            return False
        # Who was a suspect and got nowhere is not cleared by another kind of loss.
        suspect = died or (self.header.suspect and not self._got_further)
        self.header = self._next_header(suspect)
        self.phase = Phase.WAITING
        self.worker = None
        return True

    @property
    def blamed(self) -> bool:
        """Whether it counts as the reason why its workers died."""
        return self._deaths >= FATAL_DEATHS

    @property
    def _got_further(self) -> bool:
        """Whether the current attempt brought something that those before it had not."""
        return False

    @property
    def _began_before(self) -> bool:
        """Whether a part of the answer is there from an earlier attempt."""
        return False

    def _next_header(self, suspect: bool) -> Generate | Embed:
        """The header of the next attempt."""
        return dataclasses.replace(self.header, attempt=self.header.attempt + 1, suspect=suspect)

    def _end(self) -> None:
        self.phase = Phase.ENDED
        self.body = b""
        self.finished_at = time.monotonic_ns()
        self._wake()

    async def _awake(self) -> None:
        """Returns at the next `_wake`. For one reader at a time."""
        self._reader = asyncio.get_running_loop().create_future()
        await self._reader

    def _wake(self) -> None:
        if self._reader and not self._reader.done():
            self._reader.set_result(None)


class Answer(Exchange):
    """The one answer to a request for vectors: it is there whole, or not at all."""

    def __init__(self, header: Embed, body: bytes) -> None:
        super().__init__(header, body)
        self._answer: tuple[Embedded, bytes] | None = None

    def finish(self, embedded: Embedded, numbers: bytes) -> bool:
        """Takes the answer over; False where it is not whole, and the attempt lost."""
        if len(numbers) != 4 * embedded.count * embedded.dimension:
            return False
        self._answer = embedded, numbers
        self._end()
        return True

    async def take(self) -> tuple[Embedded, bytes]:
        """The answer, as soon as it is there. Raises the `PronkError` that came in its place."""
        while self.phase is not Phase.ENDED:
            await self._awake()
        if self._answer is None:
            assert self._error
            raise self._error
        return self._answer
