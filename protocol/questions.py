"""Asking a process that answers questions, and waiting for the answer.

Questions can be asked again without harm. That is all it takes to survive the death of whoever is
asked: a question that was not answered is repeated until the next process answers it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from .channels import Dealer
from .errors import Code, PronkError
from .messages.library import CallFailed
from .process import new_incarnation

REPEAT_SECONDS = 2.0
PATIENCE_SECONDS = 10.0


class Questions:
    """A connection to the store, or to another process that answers questions, for as many at a
    time as one likes. `whom` begins the sentence that says that it does not answer.
    """

    def __init__(self, endpoint: str, whom: str = "the model library") -> None:
        self._whom = whom
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._dealer = Dealer(endpoint, new_incarnation(), self._answered)

    async def ask(self, question: Callable[[str], Any]) -> Any:
        """The answer to `question(call)`, a message that has a `call`.

        Raises `PronkError`: what the answer said, or UNAVAILABLE when none came in ten seconds.
        """
        call = uuid4().hex
        message = question(call)
        answer = self._waiting[call] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    self._dealer.send(message)
                    done, _ = await asyncio.wait({answer}, timeout=REPEAT_SECONDS)
                    if done:
                        break
        except TimeoutError:
            raise PronkError(
                Code.UNAVAILABLE,
                f"{self._whom} does not answer; try again in a moment",
                retry_after=PATIENCE_SECONDS,
            ) from None
        finally:
            del self._waiting[call]
        if isinstance(answer.result(), CallFailed):
            raise answer.result().failure.error()
        return answer.result()

    def close(self) -> None:
        """Ends the connection. Nobody may be waiting any more."""
        self._dealer.close()

    def _answered(self, message: Any, body: bytes) -> None:
        waiting = self._waiting.get(getattr(message, "call", ""))
        if waiting and not waiting.done():
            waiting.set_result(message)
