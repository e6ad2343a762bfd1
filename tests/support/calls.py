"""Asking a store as frontends do, and hearing everything that it says."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

from pronk.protocol.channels import Dealer
from pronk.protocol.messages.uploads import MAX_PART
from pronk.protocol.process import new_incarnation

PATIENCE = 60.0
"""Seconds after which a condition that should come true at once counts as never."""


def call() -> str:
    return uuid.uuid4().hex


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


class Frontend:
    """A peer of the store, with all messages that it got."""

    def __init__(self, endpoint: str) -> None:
        self.heard: list[Any] = []
        self._dealer = Dealer(endpoint, new_incarnation(), self._received, max_body=MAX_PART)

    def _received(self, message: Any, body: bytes) -> None:
        self.heard.append(message)

    def send(self, message: Any, body: bytes = b"") -> None:
        self._dealer.send(message, body)

    def of(self, call: str, *kinds: type[Any]) -> list[Any]:
        """What was said under a call, of these kinds or of all."""
        return [
            message
            for message in self.heard
            if message.call == call and (not kinds or isinstance(message, kinds))
        ]

    async def hear(self, call: str, *kinds: type[Any]) -> Any:
        """The first message under a call that is of one of these kinds."""
        await until(lambda: self.of(call, *kinds))
        return self.of(call, *kinds)[0]

    async def ask(self, question: Any, *kinds: type[Any]) -> Any:
        """What a question is answered with."""
        self.send(question)
        return await self.hear(question.call, *kinds)

    async def insist(self, message: Any, body: bytes, *kinds: type[Any]) -> Any:
        """What a message is answered with that is sent until it is: the first one may go to a peer
        that is just leaving.
        """
        async with asyncio.timeout(PATIENCE):
            while not self.of(message.call, *kinds):
                self.send(message, body)
                await asyncio.sleep(0.1)
        return self.of(message.call, *kinds)[0]

    def close(self) -> None:
        self._dealer.close()
