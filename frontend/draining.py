"""The orderly end of a frontend: no new connections, and time for what is under way.

Its listening socket is shared with other frontends, which take the connections from then on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Handler

KEEP_ALIVE_SECONDS = 2.0
"""How long a connection without a request stays open for the next one, whose answer then tells the
client to connect anew. Closed at once, the connection could lose a request on its way.

Counted in looks and not by the clock: a process that stood still has read nothing meanwhile."""

_LOOK_SECONDS = 0.05

_ROUNDS = 5
"""Turns of the event loop from the arrival of a request until it is counted, and some more."""


class Draining:
    """What is under way in one application, and the wait for its end.

    `middleware` has to be the outermost one, `mark` is for the signal `on_response_prepare`.
    """

    def __init__(self) -> None:
        self._requests = 0
        self._until: float | None = None
        self._waiting: asyncio.Task[None] | None = None

    def begin(self, timeout: float, wait: Callable[[], Awaitable[None]]) -> None:
        """Starts `wait`, which is to end with `done`. Begun again, it only moves the limit to
        `timeout` seconds from now.
        """
        self._until = time.monotonic() + timeout
        if self._waiting is None:
            self._waiting = asyncio.ensure_future(wait())

    async def done(self, connections: Callable[[], int]) -> None:
        """Returns when nothing is under way any more, or the limit is over.

        `connections` tells how many are open.
        """
        assert self._until is not None
        patience = KEEP_ALIVE_SECONDS
        while (left := self._until - time.monotonic()) > 0:
            # First of all: a connection that was accepted just now is not counted yet.
            await asyncio.sleep(min(_LOOK_SECONDS, left))
            patience -= _LOOK_SECONDS
            if not connections() or (patience <= 0 and await self._is_quiet()):
                return

    async def _is_quiet(self) -> bool:
        """Whether no request is being answered, those included that have only just arrived: after
        a standstill of this process its timers run before it has read anything.
        """
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
        return not self._requests

    async def mark(self, request: web.Request, response: web.StreamResponse) -> None:
        """Tells a client that its connection ends with this answer."""
        if self._until is not None:
            response.headers["Connection"] = "close"
            response.force_close()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Counts the requests that are being answered."""
        self._requests += 1
        try:
            return await handler(request)
        finally:
            self._requests -= 1
