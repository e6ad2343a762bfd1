"""tcp between hosts: who may connect, and why a connection failed.

The server's end is a `Gate`: CURVE with the server's own keys, and every client's key looked up
among those that the operator put into `PRONK_KEYS`. ZeroMQ asks the gate during each handshake;
whoever is unknown never gets a message through. The client's end is `join_server`, with the
server's public key, so that nobody else can play the server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import zmq
from zmq.auth.asyncio import AsyncioAuthenticator
from zmq.utils.monitor import parse_monitor_message

from .keys import ClientKeys, Pair, known_clients
from .logs import RateLimitedLog

_log = logging.getLogger(__name__)

_zmq = cast(Any, zmq)  # pyzmq generates its option names, so its stubs leave them partly untyped

_DOMAIN = "pronk"
_REREAD_SECONDS = 1.0

_HEARTBEAT_MS = 3000
_HEARTBEAT_TIMEOUT_MS = 20000
"""Silence after which ZeroMQ ends a tcp connection and tries anew: the kernel takes a quarter of an
hour to notice that a host or a cable is gone. Longer than the scheduler waits for a silent worker,
so that a connection which ends sooner says that a process has died."""

_HANDSHAKE_MS = 5000

_EVENTS = (
    _zmq.EVENT_HANDSHAKE_SUCCEEDED
    | _zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | _zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | _zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Gate:
    """Lets those in whose public keys are known. Lives on one event loop.

    The keys are looked up in their directory again, at most once a second: a host is added or
    locked out by its file, without a restart. Who is connected already stays so until it
    connects anew.
    """

    def __init__(self, own: Pair, directory: Path) -> None:
        self.log = RateLimitedLog(_log)
        self._own = own
        self._directory = directory
        self._known: dict[bytes, str] = {}
        self._read_at = -_REREAD_SECONDS
        self.context: Any = _zmq.Context()
        """The sockets behind this gate belong to it: ZeroMQ asks one authenticator in each."""
        self._authenticator = AsyncioAuthenticator(self.context)
        self._authenticator.configure_curve_callback(_DOMAIN, self)
        self._authenticator.start()

    def guard(self, socket: Any, endpoint: str) -> None:
        """Makes a socket, before it is bound, talk to nobody but those whom this gate lets in."""
        _prepare(socket, endpoint)
        socket.setsockopt(_zmq.CURVE_SERVER, 1)
        socket.setsockopt(_zmq.CURVE_SECRETKEY, self._own.secret)
        socket.setsockopt(_zmq.ZAP_DOMAIN, _DOMAIN.encode())
        # Without an authenticator nobody gets in, where ZeroMQ's default is everybody.
        socket.setsockopt(_zmq.ZAP_ENFORCE_DOMAIN, 1)

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a client with this public key may connect. ZeroMQ asks in every handshake."""
        now = time.monotonic()
        if now - self._read_at >= _REREAD_SECONDS:
            self._read_at = now
            self._known = known_clients(self._directory)
        if name := self._known.get(key):
            _log.info("%s connects over tcp", name)
            return True
        self.log.warning(
            "unknown key", f"{key.decode('ascii', 'replace')} may not connect over tcp"
        )
        return False

    def close(self) -> None:
        """Lets nobody in any more. The sockets behind it have to be closed before."""
        self._authenticator.stop()
        self.context.term()


def join_server(socket: Any, endpoint: str, keys: ClientKeys) -> None:
    """Makes a socket, before it is connected, talk to nobody but the owner of the server's key."""
    _prepare(socket, endpoint)
    socket.setsockopt(_zmq.CURVE_SERVERKEY, keys.server)
    socket.setsockopt(_zmq.CURVE_PUBLICKEY, keys.own.public)
    socket.setsockopt(_zmq.CURVE_SECRETKEY, keys.own.secret)


def _prepare(socket: Any, endpoint: str) -> None:
    socket.setsockopt(_zmq.IPV6, int("[" in endpoint))
    socket.setsockopt(_zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
    socket.setsockopt(_zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(_zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)


class Handshakes:
    """Tells of the handshakes of one socket that failed, as `on_failure(reason)`, and of those that
    succeeded, as `on_success()`.
    """

    def __init__(
        self,
        socket: Any,
        on_failure: Callable[[str], None],
        on_success: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_failure = on_failure
        self._on_success = on_success
        self._watched = socket
        self._events: Any = socket.get_monitor_socket(_EVENTS)
        self._loop.add_reader(self._events.FD, self.look)
        self._loop.call_soon(self.look)  # the descriptor signals changes from a first look on

    def close(self) -> None:
        """Ends it, before the socket is closed."""
        self._loop.remove_reader(self._events.FD)
        self._watched.disable_monitor()
        self._events.close(linger=0)

    def look(self) -> None:
        """Tells what has happened by now."""
        while not self._events.closed:
            try:
                frames = self._events.recv_multipart(_zmq.NOBLOCK)
            except _zmq.Again:
                return
            event = parse_monitor_message(frames)
            if event["event"] == _zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._on_success()
            else:
                self._on_failure(_reason(event["event"], event["value"]))


def _reason(event: int, value: int) -> str:
    if event == _zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return "the key is not known there"
    if event == _zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        return f"no CURVE, or keys that do not belong together (ZeroMQ's protocol error {value:#x})"
    return "the connection was closed within the handshake, as it is for a wrong server key"
