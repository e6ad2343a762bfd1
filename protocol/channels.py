"""Sockets between processes, on asyncio: `Router` listens, `Dealer` connects.

ZeroMQ's defaults lose or hoard messages in silence when a peer dies, so here every send is
non-blocking, ZeroMQ's own buffers are small, and what does not fit waits in an outbox of ours that
is bounded in bytes and in time. A peer that takes nothing for `patience` seconds, or for which
more than `outbox_bytes` wait, is given up: its owner is told and decides.

Sockets are read through their edge-triggered descriptor, many messages per wake-up, because one
wake-up of the event loop costs more than reading a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import zmq

from .codec import MAX_HEADER, MalformedMessage, join, split
from .gate import Gate, Handshakes, join_server
from .keys import ClientKeys
from .logs import RateLimitedLog

_log = logging.getLogger(__name__)

HIGH_WATER_MARK = 256
"""Messages that ZeroMQ may hold per peer and direction; the rest waits where we can see it."""

DEFAULT_OUTBOX_BYTES = 64 * 1024 * 1024
DEFAULT_PATIENCE = 10.0

_LARGE = 1024 * 1024
"""Bytes from which handing a message over costs less than copying it."""

_READ_BATCH = 64
_CATCH_UP_BATCHES = 100
_RETRY_SECONDS = 0.005
_CONNECT_AGAIN_SECONDS = 3.0
"""After a failed handshake: ZeroMQ gives a connection up whose keys were refused."""


class Outbox:
    """Messages that wait for one peer, first in, first out, bounded in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._messages: deque[list[bytes]] = deque()
        self.bytes = 0
        self.since = 0.0
        """Monotonic time since which the first message has been waiting."""

    def __bool__(self) -> bool:
        return bool(self._messages)

    def put(self, frames: list[bytes]) -> bool:
        """Appends a message; False, and nothing appended, when it does not fit."""
        size = sum(map(len, frames))
        if self.bytes + size > self._limit:
            return False
        if not self._messages:
            self.since = time.monotonic()
        self._messages.append(frames)
        self.bytes += size
        return True

    def drain(self, send: Callable[[list[bytes]], bool]) -> None:
        """Hands messages to `send` until it returns False or none is left."""
        while self._messages and send(self._messages[0]):
            self.bytes -= sum(map(len, self._messages.popleft()))
            self.since = time.monotonic()


class _Channel(ABC):
    """What `Router` and `Dealer` share: options, the reading loop, the writing tick."""

    def __init__(self, kind: int, max_body: int, context: Any = None) -> None:
        self._loop = asyncio.get_running_loop()
        # Any: pyzmq generates its option names, so its stubs leave them partly untyped.
        self._socket = cast(Any, context or zmq.Context.instance()).socket(kind)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_HEADER + max_body)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        self._malformed = RateLimitedLog(_log)
        self._faults = RateLimitedLog(_log)
        self._wake_scheduled = False
        self._retry: asyncio.TimerHandle | None = None
        self._handshakes: Handshakes | None = None
        self._closed = False

    def _attach(self) -> None:
        self._loop.add_reader(self._socket.FD, self._wake)
        self._schedule_wake()

    def close(self, linger: float = 0.0) -> None:
        """Gives up everything that waits here, and the socket. May be called twice.

        What ZeroMQ took already it may go on delivering for `linger` seconds, as long as the
        process is there: `zmq.Context.term` waits for it.
        """
        if self._closed:
            return
        self._closed = True
        if self._retry:
            self._retry.cancel()
        self._loop.remove_reader(self._socket.FD)
        if self._handshakes:
            self._handshakes.close()
        self._socket.close(linger=int(linger * 1000))

    def _schedule_wake(self) -> None:
        # The descriptor signals changes only, and any call on the socket may swallow one: after
        # each send, one that failed as well, the socket must be looked at again.
        if not self._wake_scheduled:
            self._wake_scheduled = True
            self._loop.call_soon(self._wake_soon)

    def _wake_soon(self) -> None:
        self._wake_scheduled = False
        self._wake()

    def _wake(self) -> None:
        if self._closed:
            return
        if self._read():
            self._schedule_wake()
        if not self._closed:
            self._flush()

    def catch_up(self) -> None:
        """Reads what has arrived, up to some thousand messages: who sends without end holds up
        nobody for ever. Not for whoever just handles a message.
        """
        for _ in range(_CATCH_UP_BATCHES):
            if not self._read():
                return
        self._schedule_wake()

    def _read(self) -> bool:
        """Reads a batch of messages; whether there may be more."""
        for _ in range(_READ_BATCH):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            try:
                self._received(frames)
            except Exception:
                # A fault of ours in one message must not keep those behind it from being read:
                # the descriptor does not signal them again.
                self._faults.exception("a message could not be handled")
            if self._closed:
                return False
        return True

    @abstractmethod
    def _received(self, frames: list[bytes]) -> None:
        """Takes over one message as it came from the socket."""

    @abstractmethod
    def _flush(self) -> None:
        """Sends what waits, as far as it is taken, and gives up who takes nothing."""

    def _retry_later(self) -> None:
        if self._retry is None and not self._closed:
            self._retry = self._loop.call_later(_RETRY_SECONDS, self._retry_now)

    def _retry_now(self) -> None:
        self._retry = None
        self._wake()

    def _try_send(self, frames: list[bytes]) -> bool:
        """Sends, or returns False when the peer takes no more just now: `_retry_later` is up to
        the caller then, and looks at the socket, too.
        """
        try:
            copy = len(frames[-1]) < _LARGE
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=copy)
        except zmq.Again:
            return False
        except zmq.ZMQError:
            self._schedule_wake()
            raise
        self._schedule_wake()
        return True

    def _decode(self, frames: list[bytes], sender: str) -> tuple[Any, bytes] | None:
        if len(frames) != 1:
            self._malformed.warning("malformed message", f"{len(frames)} frames from {sender}")
            return None
        try:
            return split(frames[0])
        except MalformedMessage as error:
            self._malformed.warning("malformed message", f"from {sender}: {error}")
            return None


class Router(_Channel):
    """A socket that many peers connect to, each known by its identity.

    `on_message(peer, message, body)` gets everything that arrives and is a message.
    `on_stuck(peer)` hears of a peer that was given up; what waited for it is dropped. On tcp there
    is a `gate`, which lets in whom it knows.
    """

    def __init__(
        self,
        endpoint: str,
        on_message: Callable[[str, Any, bytes], None],
        on_stuck: Callable[[str], None] = lambda peer: None,
        *,
        gate: Gate | None = None,
        max_body: int = 0,
        outbox_bytes: int = DEFAULT_OUTBOX_BYTES,
        patience: float = DEFAULT_PATIENCE,
    ) -> None:
        """Raises `zmq.ZMQError` when the endpoint cannot be had."""
        super().__init__(zmq.ROUTER, max_body, gate.context if gate else None)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._on_message = on_message
        self._on_stuck = on_stuck
        self._outbox_bytes = outbox_bytes
        self._patience = patience
        self._outboxes: dict[str, Outbox] = {}
        try:
            if gate:
                gate.guard(self._socket, endpoint)
            self._socket.bind(endpoint)
        except zmq.ZMQError:
            self._closed = True
            self._socket.close(linger=0)
            raise
        if gate:
            self._handshakes = Handshakes(
                self._socket, lambda reason: gate.log.warning("refused connection", reason)
            )
        self._attach()

    def send(self, peer: str, message: Any, body: bytes = b"") -> bool:
        """Sends to one peer, now or as soon as it takes it.

        False when the peer is not connected, or more would wait for it than the bound allows: the
        message is gone, and the caller decides what that means.
        """
        frames = [peer.encode(), join(message, body)]
        outbox = self._outboxes.get(peer)
        try:
            if not outbox and self._try_send(frames):
                return True
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return False
            raise
        if outbox is None:
            outbox = self._outboxes[peer] = Outbox(self._outbox_bytes)
        self._retry_later()
        return outbox.put(frames)

    def forget(self, peer: str) -> None:
        """Drops what waits for a peer that is gone."""
        self._outboxes.pop(peer, None)

    def _received(self, frames: list[bytes]) -> None:
        peer = frames[0].decode("ascii", "replace")
        if not (frames[0].isascii() and peer.isprintable()):
            # It would go into logs, and no answer would find the way back.
            self._malformed.warning("malformed message", f"from an identity like {frames[0]!r:.80}")
            return
        if decoded := self._decode(frames[1:], peer):
            self._on_message(peer, *decoded)

    def _flush(self) -> None:
        for peer in list(self._outboxes):
            outbox = self._outboxes.get(peer)
            if outbox is None:  # forgotten by whoever heard that an earlier one was given up
                continue
            try:
                outbox.drain(self._try_send)
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                self._give_up(peer)
                continue
            if not outbox:
                del self._outboxes[peer]
            elif time.monotonic() - outbox.since > self._patience:
                self._give_up(peer)
        if self._outboxes:
            self._retry_later()

    def _give_up(self, peer: str) -> None:
        self._schedule_wake()  # no retry follows the failed send
        self.forget(peer)
        try:
            self._on_stuck(peer)
        except Exception:
            _log.exception("a peer that was given up could not be dealt with")


class Dealer(_Channel):
    """A socket connected to one `Router`, under an identity of its own.

    `on_message(message, body)` gets everything that arrives and is a message. `on_stuck()` hears
    that the other side took nothing for `patience` seconds; what waited is dropped then, and the
    connection goes on trying. With `keys` it is one over tcp, whose failures are logged.
    """

    def __init__(
        self,
        endpoint: str,
        identity: str,
        on_message: Callable[[Any, bytes], None],
        on_stuck: Callable[[], None] = lambda: None,
        *,
        keys: ClientKeys | None = None,
        max_body: int = 0,
        outbox_bytes: int = DEFAULT_OUTBOX_BYTES,
        patience: float = DEFAULT_PATIENCE,
    ) -> None:
        """Raises `zmq.ZMQError` when the endpoint is none."""
        super().__init__(zmq.DEALER, max_body)
        self._socket.setsockopt(zmq.IDENTITY, identity.encode())
        self._endpoint = endpoint
        self._on_message = on_message
        self._on_stuck = on_stuck
        self._outbox_bytes = outbox_bytes
        self._patience = patience
        self._outbox = Outbox(outbox_bytes)
        self._troubles = RateLimitedLog(_log)
        self._reconnecting: asyncio.TimerHandle | None = None
        try:
            if keys:
                join_server(self._socket, endpoint, keys)
            self._socket.connect(endpoint)
        except zmq.ZMQError:
            self._closed = True
            self._socket.close(linger=0)
            raise
        if keys:
            self._handshakes = Handshakes(self._socket, self._not_connected, self._connected)
        self._attach()

    @property
    def waits(self) -> bool:
        """Whether messages wait here because the other side takes no more just now."""
        return bool(self._outbox)

    def send(self, message: Any, body: bytes = b"") -> bool:
        """Sends now, or as soon as the other side takes it; False when the outbox is full."""
        frames = [join(message, body)]
        if not self._outbox and self._try_send(frames):
            return True
        self._retry_later()
        return self._outbox.put(frames)

    def _received(self, frames: list[bytes]) -> None:
        if decoded := self._decode(frames, self._endpoint):
            self._on_message(*decoded)

    def _flush(self) -> None:
        self._outbox.drain(self._try_send)
        if not self._outbox:
            return
        if time.monotonic() - self._outbox.since > self._patience:
            self._schedule_wake()  # no retry follows the failed send
            self._outbox = Outbox(self._outbox_bytes)
            if self._handshakes:
                self._not_connected("nobody there takes a message")
            self._on_stuck()
        else:
            self._retry_later()

    def close(self, linger: float = 0.0) -> None:
        """As for every channel; nothing tries to connect any more, either."""
        if self._reconnecting:
            self._reconnecting.cancel()
        super().close(linger)

    def _not_connected(self, reason: str) -> None:
        self._troubles.warning("no connection", f"{self._endpoint}: {reason}; trying again")
        if self._reconnecting is None and not self._closed:
            self._reconnecting = self._loop.call_later(_CONNECT_AGAIN_SECONDS, self._connect_again)

    def _connected(self) -> None:
        # ZeroMQ has tried again by itself. Whoever disconnected now would lose what is under way.
        if self._reconnecting:
            self._reconnecting.cancel()
            self._reconnecting = None

    def _connect_again(self) -> None:
        if self._handshakes:
            # Where this process stood still, its timers are over before it reads what has come.
            self._handshakes.look()
        if self._reconnecting is None:
            return
        self._reconnecting = None
        with contextlib.suppress(zmq.ZMQError):  # ZeroMQ has forgotten it already
            self._socket.disconnect(self._endpoint)
        self._socket.connect(self._endpoint)
        self._schedule_wake()
