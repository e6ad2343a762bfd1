"""Where a process is reached: by peers of this host, and by those of others where that is wanted.

They come through sockets of their own, so that a peer from elsewhere is known as such whatever it
says of itself, and cannot take over the connection of one from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import zmq

from .channels import Router
from .errors import Code, PronkError
from .gate import Gate
from .keys import server_keys
from .settings import Settings
from .tcp import join_tcp, split_tcp

OnMessage = Callable[[str, Any, bytes], None]


@dataclass(frozen=True, slots=True)
class Remote:
    """The door for other hosts."""

    router: Router
    gate: Gate
    endpoint: str
    """Where it is; its address may be one that stands for all of this host's."""


class Doors:
    """The router of this host's peers together with that of other hosts', which may be missing."""

    def __init__(self, local: Router, remote: Remote | None) -> None:
        self._local = local
        self.remote = remote

    def send(self, peer: str, message: Any, body: bytes = b"") -> bool:
        """Sends to one peer, wherever it is, as `Router.send` does."""
        if self._local.send(peer, message, body):
            return True
        return self.remote is not None and self.remote.router.send(peer, message, body)

    def catch_up(self) -> None:
        """Reads all that peers of this host have sent."""
        self._local.catch_up()

    def forget(self, peer: str) -> None:
        """Drops what waits for a peer that is gone."""
        self._local.forget(peer)
        if self.remote:
            self.remote.router.forget(peer)

    def close(self) -> None:
        """Closes both."""
        self._local.close()
        if self.remote:
            self.remote.router.close()
            self.remote.gate.close()


def open_remote(
    settings: Settings, places: Iterable[int], on_message: OnMessage, **options: Any
) -> Remote | None:
    """The door for other hosts, on the first port that is free of those at `places` behind the one
    in PRONK_LISTEN_TCP; None where no such setting is. `options` are those of `Router`.

    Raises `PronkError` when there are no keys, or no port is free.
    """
    if not settings.listen_tcp:
        return None
    directory = settings.keys_directory
    gate = Gate(server_keys(directory), directory)
    address, first = split_tcp(settings.listen_tcp)
    reason = "no port"
    for place in places:
        endpoint = join_tcp(address, first + place)
        try:
            router = Router(endpoint, on_message, gate=gate, **options)
        except zmq.ZMQError as error:
            reason = f"{endpoint}: {error.strerror.lower()}"
            if error.errno == zmq.EADDRINUSE:
                continue
            break
        return Remote(router, gate, endpoint)
    gate.close()
    raise PronkError(Code.UNAVAILABLE, f"PRONK_LISTEN_TCP={settings.listen_tcp}: {reason}")
