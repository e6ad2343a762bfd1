"""The way back: one connection to each frontend that has asked something."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..protocol.channels import Dealer
from ..protocol.keys import ClientKeys


class FrontendLink:
    """A worker's connection to one frontend, made at that frontend's first request.

    `on_message(link, message)` gets what the frontend says; `on_stuck(link)` hears once that it
    takes nothing any more, and the link is closed then.
    """

    def __init__(
        self,
        endpoint: str,
        identity: str,
        on_message: Callable[[FrontendLink, Any], None],
        on_stuck: Callable[[FrontendLink], None],
        keys: ClientKeys | None = None,
    ) -> None:
        """Raises `zmq.ZMQError` when the endpoint is none."""
        self.endpoint = endpoint
        self.closed = False
        self.last_used = time.monotonic()
        self._on_stuck = on_stuck
        self._dealer = Dealer(
            endpoint,
            identity,
            lambda message, body: on_message(self, message),
            self._give_up,
            keys=keys,
        )

    def send(self, message: Any, body: bytes = b"") -> None:
        """Sends now or soon. A frontend for which too much waits counts as stuck."""
        if self.closed:
            return
        self.last_used = time.monotonic()
        if not self._dealer.send(message, body):
            self._give_up()

    @property
    def waits(self) -> bool:
        """Whether messages wait here because the frontend takes no more just now."""
        return self._dealer.waits

    def _give_up(self) -> None:
        if not self.closed:
            self.close()
            self._on_stuck(self)

    def close(self, linger: float = 0.0) -> None:
        """Ends the connection; what was sent may still be delivered for `linger` seconds."""
        self.closed = True
        self._dealer.close(linger)
