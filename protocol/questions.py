"""Asking a process that answers questions, and waiting for the answer.

Questions can be asked again without harm. That is all it takes to survive the death of whoever is
asked: a question that was not answered is repeated until the next process answers it. `following`
waits for answers that take long, and hears how far they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from .channels import Dealer
from .errors import Code, PronkError
from .messages.failure import Failure
from .messages.library import CallFailed
from .patience import within
from .process import new_incarnation

REPEAT_SECONDS = 2.0
PATIENCE_SECONDS = 10.0


class Questions:
    """A connection to the store, or to another process that answers questions, for as many at a
    time as one likes. `whom` begins the sentence that says that it does not answer.
    """

    def __init__(self, endpoint: str, whom: str = "the model library") -> None:
        self._whom = whom
        self._listening: dict[str, Callable[[Any], None]] = {}
        self._dealer = Dealer(endpoint, new_incarnation(), self._received)

    async def ask(self, question: Callable[[str], Any], patience: float = PATIENCE_SECONDS) -> Any:
        """The answer to `question(call)`, a message that has a `call`.

        Raises `PronkError`: what the answer said, or UNAVAILABLE when none came within `patience`
        seconds. They are counted in questions, because this process may be the one that stands
        still.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answered(message: Any) -> None:
            if not answer.done():
                answer.set_result(message)

        call = self.begin(answered)
        message = question(call)
        try:
            left = patience
            while not answer.done():
                if left <= 0:
                    raise self.silent()
                self._dealer.send(message)
                await within(answer, min(left, REPEAT_SECONDS))
                left -= REPEAT_SECONDS
        finally:
            self.end(call)
        if isinstance(answer.result(), CallFailed):
            raise answer.result().failure.error()
        return answer.result()

    def begin(self, heard: Callable[[Any], None]) -> str:
        """A new call. `heard` gets every message that carries it, until `end`."""
        call = uuid4().hex
        self._listening[call] = heard
        return call

    def end(self, call: str) -> None:
        """Nobody listens to this call any more."""
        self._listening.pop(call, None)

    def send(self, message: Any, body: bytes = b"") -> bool:
        """Sends now, or as soon as the other side takes it; False when too much waits already."""
        return self._dealer.send(message, body)

    @property
    def waits(self) -> bool:
        """Whether messages wait here because the other side takes no more just now."""
        return self._dealer.waits

    def silent(self) -> PronkError:
        """The error that says that nobody answers."""
        return PronkError(
            Code.UNAVAILABLE,
            f"{self._whom} does not answer; try again in a moment",
            retry_after=PATIENCE_SECONDS,
        )

    def fail_all(self, error: PronkError) -> None:
        """Ends every call that is open, as if this had been the answer."""
        for call, heard in list(self._listening.items()):
            heard(CallFailed(call, Failure.of(error)))

    def close(self) -> None:
        """Ends the connection. Nobody may be waiting any more."""
        self._dealer.close()

    def _received(self, message: Any, body: bytes) -> None:
        if heard := self._listening.get(getattr(message, "call", "")):
            heard(message)
