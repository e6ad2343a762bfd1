"""One request on its way through the frontend, as a state machine without sockets.

What every kind of request has in common: attempts, the worker that has it, its end. `stream` adds
an answer that comes in pieces; `Answer` here is one that comes whole.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from enum import Enum

from ..protocol.errors import PronkError
from ..protocol.lifecycle import Lifecycle
from ..protocol.messages.embedding import Embed, Embedded
from ..protocol.messages.generation import Generate

MAX_ATTEMPTS = 2
"""How often a request is tried before the death of its worker is the client's to know."""


class Phase(Enum):
    """Where a request is in its life. `Exchange` alone changes it, as its methods say."""

    WAITING = "waiting"
    """Submitted; the current attempt has not been heard of."""
    RUNNING = "running"
    """A worker has it."""
    ENDED = "ended"
    """Finished, failed or abandoned: nothing more comes."""


REQUEST = Lifecycle(
    "request",
    {
        Phase.WAITING: {Phase.RUNNING, Phase.WAITING, Phase.ENDED},
        Phase.RUNNING: {Phase.WAITING, Phase.ENDED},
        Phase.ENDED: set[Phase](),
    },
    logging.getLogger(__name__),
    logging.DEBUG,
)
"""A request's life in the frontend that owns it."""


class Exchange:
    """A request and its answer.

    What leads from a phase to another:

    - WAITING → RUNNING: `started`, the worker of the current attempt speaks
    - WAITING or RUNNING → WAITING: `try_again`, the attempt is lost and nothing was shown yet
    - WAITING or RUNNING → ENDED: `fail`, or what the kind of answer has for its end
    """

    def __init__(self, header: Generate | Embed, body: bytes) -> None:
        self.header = header
        self.body = body
        """What a resubmission sends again; dropped once none can follow."""
        self.phase = Phase.WAITING
        self.worker: str | None = None
        """The incarnation that runs the current attempt."""
        self.started_at: int | None = None
        """Monotonic nanoseconds at which the current attempt left the queue."""
        self.finished_at: int | None = None
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
            self._enter(Phase.RUNNING)
            self.worker = worker
            self.started_at = time.monotonic_ns()

    def fail(self, error: PronkError) -> None:
        """Ends the exchange with an error, which comes after what is waiting to be read."""
        if self.phase is not Phase.ENDED:
            self._error = error
            self._end()

    def try_again(self) -> bool:
        """Begins the next attempt after the loss of one; False where that is not possible."""
        if self.phase is Phase.ENDED or self.header.attempt >= MAX_ATTEMPTS:
            return False
        self.header = dataclasses.replace(self.header, attempt=self.header.attempt + 1)
        self._enter(Phase.WAITING)
        self.worker = None
        return True

    def _end(self) -> None:
        self._enter(Phase.ENDED)
        self.body = b""
        self.finished_at = time.monotonic_ns()
        self._wake()

    def _enter(self, phase: Phase) -> None:
        self.phase = REQUEST.step(self.key, self.phase, phase)

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
