"""Clients that take in as much as there is, and cost as little as clients in Python can.

All connections read into one buffer, and look at no more of it than its end: what is measured is
the server, which shares the processor with them. One client keeps all that it gets, as a check.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

_END = b"0\r\n\r\n"
_PATIENCE = 600.0
_BUFFER = bytearray(1 << 20)
_VIEW = memoryview(_BUFFER)


class Flooded(asyncio.BufferedProtocol):
    """One client: sends one request, and reads its answer to the end."""

    def __init__(self, *, keep: bool) -> None:
        self.kept = bytearray()
        """All that came; only with `keep`."""
        self.bytes = 0
        self.ended = 0.0
        """When the last byte came, by `time.perf_counter`."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keep = keep
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return _VIEW

    def buffer_updated(self, nbytes: int) -> None:
        first = not self.bytes
        self.bytes += nbytes
        if self._keep:
            self.kept += _VIEW[:nbytes]
        if first:
            if not _BUFFER.startswith(b"HTTP/1.1 200"):
                self._fail(f"the server answered {bytes(_VIEW[:nbytes])[:1000]!r}")
            if _BUFFER.find(b"\r\n\r\n") + 4 == nbytes:
                return  # only the head, whose end may look like that of the answer
        if _VIEW[max(nbytes - len(_END), 0) : nbytes] == _END and not self.done.done():
            self.ended = time.perf_counter()
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("the server closed the connection")

    def _fail(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(reason))


async def flood(port: int, clients: int, body: dict[str, Any]) -> tuple[float, bytes]:
    """Has all clients ask at once; returns the seconds that it took, and what one of them got."""
    loop = asyncio.get_running_loop()
    flooded = [
        (await loop.create_connection(lambda n=n: Flooded(keep=n == 0), "127.0.0.1", port))[1]
        for n in range(clients)
    ]
    data = json.dumps(body).encode()
    request = (
        b"POST /api/generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(data) + data
    )
    began = time.perf_counter()
    for one in flooded:
        one.transport.write(request)
    await asyncio.wait_for(asyncio.gather(*(one.done for one in flooded)), _PATIENCE)
    for one in flooded:
        one.transport.close()
    return max(one.ended for one in flooded) - began, bytes(flooded[0].kept)
