"""Many requests at once from one cheap process: it shares the processor with what it measures.

Raw asyncio sockets; of an answer only the arrival is noted, and its last object is parsed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

_END = b"0\r\n\r\n"
_PATIENCE = 1800.0


class Exchange(asyncio.Protocol):
    """One streamed request on a connection of its own. Times are those of `time.perf_counter`."""

    def __init__(self, *, trace: bool = False) -> None:
        self.sent = 0.0
        self.first = 0.0
        """When the first piece of text came."""
        self.ended = 0.0
        self.arrivals: list[tuple[float, int]] = []
        """When pieces of text came, and how many; only with `trace`."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._trace = trace
        self._head: bytes | None = b""
        self._tail: deque[bytes] = deque(maxlen=64)
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # uvloop's own kind

    def send(self, path: str, body: dict[str, Any]) -> None:
        """Sends the request. The connection must be open, and a request once answered."""
        data = json.dumps(body).encode()
        self._head, self.first, self.ended = b"", 0.0, 0.0
        if self.done.done():
            self.done = asyncio.get_running_loop().create_future()
        self.sent = time.perf_counter()
        self._transport.write(
            b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data
        )

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            self._head += data
            head, found, data = self._head.partition(b"\r\n\r\n")
            if not found:
                return
            self._head = None
            if not head.startswith(b"HTTP/1.1 200"):
                self._fail(f"the server answered {(head + data)[:1000].decode(errors='replace')}")
                return
            if not data:
                return
        now = time.perf_counter()
        if not self.first:
            self.first = now
            if not self.started.done():
                self.started.set_result(None)
        if self._trace:
            self.arrivals.append((now, data.count(b"}\n")))
        self._tail.append(data)
        if data.endswith(_END) and not self.done.done():
            self.ended = now
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("the server closed the connection")

    def _fail(self, reason: str) -> None:
        for future in (self.started, self.done):
            if not future.done():
                future.set_exception(RuntimeError(reason))
                future.exception()  # that of one of them may never be asked for

    @property
    def last(self) -> dict[str, Any]:
        """The object that ended the answer, with its counts and durations."""
        tail = b"".join(self._tail)
        start = tail.rfind(b'{"model"')
        return json.loads(tail[start : tail.rindex(b"}") + 1])

    def close(self) -> None:
        self._transport.close()


async def connect(port: int, *, trace: bool = False) -> Exchange:
    """A connection to the server, for one request after the other."""
    loop = asyncio.get_running_loop()
    _, exchange = await loop.create_connection(lambda: Exchange(trace=trace), "127.0.0.1", port)
    return exchange


async def ask_all(
    port: int, bodies: Sequence[dict[str, Any]], path: str = "/api/generate"
) -> list[Exchange]:
    """Sends all requests at the same moment; returns when the last one is answered."""
    exchanges = await asyncio.gather(*(connect(port) for _ in bodies))
    for exchange, body in zip(exchanges, bodies, strict=True):
        exchange.send(path, body)
    await asyncio.wait_for(asyncio.gather(*(one.done for one in exchanges)), _PATIENCE)
    for exchange in exchanges:
        exchange.close()
    return exchanges


def elapsed(exchanges: Sequence[Exchange]) -> float:
    """Seconds from the first request to the last answer."""
    return max(one.ended for one in exchanges) - min(one.sent for one in exchanges)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs it in the quickest event loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
