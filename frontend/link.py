"""The frontend's line to the scheduler: greeting, heartbeats, questions.

ZeroMQ reconnects in silence, so a scheduler that was replaced is told from the old one by its boot
id, and is told everything again. Whoever uses the line hears of that and submits what waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from ..protocol.channels import DEFAULT_OUTBOX_BYTES, Dealer
from ..protocol.errors import Code, PronkError
from ..protocol.messages.failure import Failure
from ..protocol.messages.fleet import (
    Hello,
    PeerHeartbeat,
    Refused,
    SchedulerHeartbeat,
    WhoAreYou,
)
from ..protocol.messages.generation import Evicted, Failed, Preloaded
from ..protocol.messages.library import CallFailed
from ..protocol.messages.status import RunningList
from ..protocol.patience import within

_log = logging.getLogger(__name__)

BEAT = 1.0
"""Seconds between heartbeats."""

QUIET = 3.5
"""Seconds without a heartbeat after which the scheduler counts as down."""

GONE = 30.0
"""Seconds without a heartbeat after which nobody waits for the scheduler any longer."""

STANDSTILL = 5.0
"""Seconds by which a heartbeat of ours is late when this process itself was stopped. Workers give
up a frontend that takes nothing for ten."""


def unavailable() -> PronkError:
    """What a caller hears who waited for a scheduler in vain."""
    return PronkError(
        Code.UNAVAILABLE,
        "the scheduler is not running just now; it is restarted by itself, try again in a moment",
        retry_after=5.0,
    )


class SchedulerLink:
    """One connection to whichever scheduler is there.

    `hello` makes the greeting that says what is in flight. `on_announced()` follows each greeting
    that a scheduler needed: what it may not know is to be sent again. `on_message` gets what is
    not the link's own affair, `on_beat` runs each second, `on_refused` hears why this process
    cannot take part.
    """

    def __init__(
        self,
        endpoint: str,
        identity: str,
        *,
        hello: Callable[[], Hello],
        on_announced: Callable[[], None],
        on_message: Callable[[Any], None],
        on_beat: Callable[[], int],
        on_refused: Callable[[Failure], None],
        outbox_bytes: int = DEFAULT_OUTBOX_BYTES,
    ) -> None:
        self._hello = hello
        self._on_announced = on_announced
        self._on_message = on_message
        self._on_beat = on_beat
        self._on_refused = on_refused
        self._boot_id: str | None = None
        self._heard = time.monotonic()
        self._was_up = False
        self._questions: dict[str, tuple[Any, asyncio.Future[Any]]] = {}
        self._dealer = Dealer(endpoint, identity, self._received, outbox_bytes=outbox_bytes)
        self._dealer.send(hello())
        self._beating = asyncio.create_task(self._beat_for_ever())

    @property
    def silence(self) -> float:
        """Seconds since the scheduler was last heard of, or since the start."""
        return time.monotonic() - self._heard

    @property
    def up(self) -> bool:
        """Whether a scheduler that knows this process was heard of just now."""
        return self._boot_id is not None and self.silence < QUIET

    def send(self, message: Any, body: bytes = b"") -> bool:
        """Sends to the scheduler; False when there is no room for the message.

        While the scheduler is down nothing is sent, and True returned: what matters is sent again
        when the next one is greeted.
        """
        if not self.up:
            self._was_up = False  # also when it is back before the next beat: the next word tells
            return True
        return self._dealer.send(message, body)

    def tell(self, message: Any) -> None:
        """Sends what is not sent again, such as the end of a request: a scheduler that seems to be
        down may only be slow. A new one knows nothing of it, and does not mind.
        """
        self._dealer.send(message)

    async def ask(self, key: str, question: Any, patience: float) -> Any:
        """The answer to a question that can be asked again without harm.

        `key` is what the answer carries as `call` or `request`. Raises `PronkError`: the
        scheduler's own answer, or UNAVAILABLE when it is gone or none came within `patience`
        seconds.
        """
        if self.silence > GONE:
            raise unavailable()
        answer = asyncio.get_running_loop().create_future()
        self._questions[key] = question, answer
        try:
            if not (self.send(question) and await within(answer, patience)):
                raise unavailable()
            message = answer.result()
        finally:
            del self._questions[key]
        if isinstance(message, (CallFailed, Failed)):
            raise message.failure.error()
        return message

    def announce_again(self) -> None:
        """Tells the scheduler anew what is in flight; it answers `Lost` for what nobody has."""
        self._dealer.send(self._hello())

    def fail_questions(self, error: PronkError) -> None:
        """Ends every question that is open."""
        for _, answer in self._questions.values():
            if not answer.done():
                answer.set_exception(error)

    def close(self) -> None:
        """Ends the connection."""
        self._beating.cancel()
        self._dealer.close()

    def _received(self, message: Any, body: bytes) -> None:
        self._heard = time.monotonic()
        match message:
            case SchedulerHeartbeat(boot_id):
                self._greeted_by(boot_id)
            case WhoAreYou(boot_id):
                self._boot_id = boot_id
                self._dealer.send(self._hello())
                self._announce()
            case Refused(failure):
                self._on_refused(failure)
            case RunningList(key, _) | CallFailed(key, _) | Preloaded(key) | Evicted(key):
                self._answered(key, message)
            case Failed(key, _, _) if key in self._questions:
                self._answered(key, message)
            case _:
                self._on_message(message)

    def _greeted_by(self, boot_id: str) -> None:
        known, self._boot_id = self._boot_id, boot_id
        if known is not None and known != boot_id:
            _log.info("another scheduler took over")
            self._dealer.send(self._hello())
        if known != boot_id or not self._was_up:
            self._announce()

    def _announce(self) -> None:
        self._was_up = True
        for question, _ in list(self._questions.values()):
            self.send(question)
        self._on_announced()

    def _answered(self, key: str, message: Any) -> None:
        _, answer = self._questions.get(key, (None, None))
        if answer and not answer.done():
            answer.set_result(message)

    async def _beat_for_ever(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(BEAT)
            try:
                late = time.monotonic() - began - BEAT
                if late > STANDSTILL:
                    # Answers may have been given up meanwhile: the scheduler knows who still works.
                    _log.warning("this process stood still for %.1f s", late)
                    self._heard = min(self._heard + late, time.monotonic())
                    self.announce_again()
                self._beat()
            except Exception:
                # A fault in one beat must not end all later ones.
                _log.exception("a heartbeat failed")

    def _beat(self) -> None:
        if self._was_up and not self.up:
            self._was_up = False
            _log.warning("no heartbeat from the scheduler")
        if self.silence > GONE:
            self.fail_questions(unavailable())
        self._dealer.send(PeerHeartbeat(in_flight=self._on_beat()))
