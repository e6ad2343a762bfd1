"""A proxy in front of a registry that does what networks and bad registries do.

It speaks HTTP on bare sockets, because the faults are those that no library would make: bodies that
end in the middle, lengths that are not true. Each connection is for one request.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came."""

    number: int
    """How many came before it."""
    method: str
    path: str
    start: int
    end: int | None
    """The bytes that were asked for, up to and without `end`; None for the last one there is."""
    ranged: bool

    @property
    def blob(self) -> str | None:
        """The digest of the blob that it is about."""
        found = re.search(r"/blobs/sha256:([0-9a-f]{64})", self.path)
        return found[1] if found else None


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one answer. Bytes are those of its body."""

    status: int | None = None
    """Answers this, and does not ask the registry."""
    headers: dict[str, str] = field(default_factory=dict)
    """Put in the place of the registry's."""
    cut: int | None = None
    """Breaks the connection after so many."""
    stall: int | None = None
    """Sends no more after so many, and keeps the connection."""
    gate: asyncio.Event | None = None
    """Sends nothing before this is set."""
    end: int | None = None
    """Ends after so many, and says so: it sends a part of what was asked for."""
    corrupt: int | None = None
    """Changes this one."""
    more: bytes = b""
    """Sends this behind the rest."""
    longer: int = 0
    """Says that there are so many more (or fewer) than there are."""
    shift: int = 0
    """Sends other bytes than those that were asked for: so many further on."""
    whole: bool = False
    """Knows no ranges."""
    lengthless: bool = False
    """Says nothing of lengths: the connection's end is that of the body."""
    gzip: bool = False
    pace: float = 0.0
    """Seconds between chunks."""
    chunk: int = 64 * 1024


GOOD = Fault()


class Faulty:
    """The proxy, as tests see it."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self.host = ""
        """`127.0.0.1:PORT`."""
        self.fault: Callable[[Asked], Fault | None] = lambda asked: None
        """Chooses what happens to an answer."""
        self.asked: list[Asked] = []
        self.sent: dict[str, int] = {}
        """Bytes that were sent of each blob, in all."""
        self._tasks: set[asyncio.Task[None]] = set()

    def asked_for(self, digest: str) -> list[Asked]:
        """Requests for one blob."""
        return [asked for asked in self.asked if asked.blob == digest]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            self._tasks.discard(task)
            writer.transport.abort() if not writer.is_closing() else None

    async def close(self) -> None:
        """Breaks all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readexactly(1)
        if first == b"\x16":
            return  # somebody tries whether we speak TLS
        head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        asked = self._understood(head)
        self.asked.append(asked)
        fault = self.fault(asked) or GOOD
        if fault.status is not None:
            fields = {"Content-Length": "0", "Connection": "close", **fault.headers}
            await _send(writer, _head(f"HTTP/1.1 {fault.status} So", fields))
            await _end(writer)
            return
        upstream = await asyncio.open_connection(*self._upstream.rsplit(":", 1))
        try:
            await self._relay(asked, fault, head, upstream, writer)
        finally:
            upstream[1].close()

    async def _relay(
        self,
        asked: Asked,
        fault: Fault,
        head: list[str],
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        writer: asyncio.StreamWriter,
    ) -> None:
        kept = [line for line in head[1:] if line and not _is(line, "connection", "range")]
        if asked.ranged and not fault.whole:
            last = "" if asked.end is None else asked.end - 1 + fault.shift
            kept.append(f"Range: bytes={asked.start + fault.shift}-{last}")
        lines = [head[0], *kept, "Connection: close", "", ""]
        await _send(upstream[1], "\r\n".join(lines).encode("latin-1"))
        answer = (await upstream[0].readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in answer[1:] if line)
        }
        length = int(fields.get("content-length", 0))
        content = b""
        if fault.gzip:
            packer = zlib.compressobj(wbits=31)
            content = packer.compress(await upstream[0].read()) + packer.flush()
            length = len(content)
            fields["content-encoding"] = "gzip"
        if fault.end is not None and length > fault.end:
            length = fault.end
            if "content-range" in fields:
                total = fields["content-range"].rpartition("/")[2]
                fields["content-range"] = f"bytes {asked.start}-{asked.start + length - 1}/{total}"
        fields["content-length"] = str(length + len(fault.more) + fault.longer)
        if fault.shift and asked.end is not None:
            # As if these were the bytes.
            total = fields["content-range"].rpartition("/")[2]
            fields["content-range"] = f"bytes {asked.start}-{asked.end - 1}/{total}"
        fields = {**fields, "connection": "close"}
        fields |= {name.lower(): value for name, value in fault.headers.items()}
        if fault.lengthless:
            del fields["content-length"]
        await _send(writer, _head(answer[0], fields))
        source = upstream[0] if not fault.gzip else _fed(content)
        await self._body(asked, fault, source, writer)

    async def _body(
        self,
        asked: Asked,
        fault: Fault,
        source: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if fault.gate:
            await fault.gate.wait()
        come = 0
        stops = [stop for stop in (fault.cut, fault.stall, fault.end) if stop is not None]
        most = min(stops, default=None)
        while most is None or come < most:
            chunk = await source.read(
                fault.chunk if most is None else min(fault.chunk, most - come)
            )
            if not chunk:
                break
            if fault.corrupt is not None and come <= fault.corrupt < come + len(chunk):
                place = fault.corrupt - come
                chunk = chunk[:place] + bytes([chunk[place] ^ 1]) + chunk[place + 1 :]
            await _send(writer, chunk)
            come += len(chunk)
            if asked.blob:
                self.sent[asked.blob] = self.sent.get(asked.blob, 0) + len(chunk)
            await asyncio.sleep(fault.pace)
        if fault.stall is not None and come >= fault.stall:
            await asyncio.Event().wait()
        if fault.cut is not None and come >= fault.cut:
            writer.close()  # what was sent arrives, and then too little
            return
        if fault.more:
            await _send(writer, fault.more)
        await _end(writer)

    def _understood(self, head: list[str]) -> Asked:
        method, path, _ = head[0].split(" ")
        fields = {line.partition(":")[0].lower(): line for line in head[1:]}
        found = _RANGE.search(fields.get("range", ""))
        start, last = (int(found[1]), found[2]) if found else (0, "")
        end = int(last) + 1 if last else None
        return Asked(len(self.asked), method, path, start, end, found is not None)


def _is(line: str, *names: str) -> bool:
    return line.partition(":")[0].strip().lower() in names


def _head(status: str, fields: dict[str, str]) -> bytes:
    lines = [status, *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def _fed(content: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(content)
    reader.feed_eof()
    return reader


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def _end(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


@asynccontextmanager
async def faulty(upstream: str) -> AsyncIterator[Faulty]:
    """A proxy on loopback, before the registry that listens on `upstream`."""
    proxy = Faulty(upstream)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    address, port = server.sockets[0].getsockname()[:2]
    proxy.host = f"{address}:{port}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
        await server.wait_closed()
