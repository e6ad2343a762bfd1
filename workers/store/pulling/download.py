"""Fetching one blob over several connections into a file, while its digest follows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ....protocol.errors import Code, PronkError
from ..registry.client import BlobStream, Repository
from ..registry.failures import ConnectionBroken, RegistryBusy
from .partial import Partial
from .patience import Patience, Terms
from .plan import MIB, Piece, Plan

_BLOCK = 2 * MIB
"""Bytes that a connection collects before it hands them to a thread that writes them."""
_CHUNKS = 512
"""The same in chunks: a system call takes 1024 at most."""
_SECONDS = 1.0
"""The same in time: what a kill can cost a slow connection."""
_DIGESTED = 32 * MIB
"""Bytes that are digested before somebody looks whether the pull was cancelled."""
_SETTLED = 64 * MIB
_SETTLED_SECONDS = 10.0
"""After so many bytes, or so long, what is there is brought to the disk, and its room looked at:
that is what a power cut can cost."""
_DRIP = 4096
"""Bytes that a connection has to bring before it counts as silent. Fewer would let it drip."""


class Download:
    """One blob on its way, from when its file is open to the last byte. On one event loop.

    It begins with one connection. When the registry has shown that it sends parts, there are as
    many as are allowed; half as many after a failure, and one more for each piece that comes whole.
    A registry that does not send parts sends all of it over one.
    """

    def __init__(
        self,
        repository: Repository,
        partial: Partial,
        *,
        connections: int,
        terms: Terms,
        threads: ThreadPoolExecutor,
        tell: Callable[[int], None],
        require_room: Callable[[int], None],
        share: Callable[[], int],
    ) -> None:
        self._repository = repository
        self._partial = partial
        self._most = connections
        self._terms = terms
        self._threads = threads
        self._tell = tell
        """Hears how many bytes are there."""
        self._require_room = require_room
        """Raises `PronkError` where the disk has no room for so many more. Blocks."""
        self._share = share
        """How many connections there may be now, beside those of other downloads."""
        self._plan = Plan(partial.size, partial.there)
        self._patience = Patience(terms)
        self._loop = asyncio.get_running_loop()
        self._parts = self._loop.create_future()
        """Done when the registry has sent a part."""
        self._width = 1
        self._round = 0
        """Counts pauses: connections of one round that break together are one failure."""
        self._not_before = 0.0
        self._running: dict[asyncio.Task[None], tuple[Piece, int]] = {}
        self._grown = asyncio.Event()
        self._settled = self._plan.there.size
        self._settled_at = self._loop.time()
        self._settling: asyncio.Future[None] | None = None
        self._begun: asyncio.Future[None] = self._loop.create_future()
        """Done when `_settling` has begun: who waits has to wait for that, too, from then on."""

    async def run(self) -> bool:
        """Fetches what is missing. Returns whether the whole is what it should be.

        Raises `PronkError` when the registry cannot be borne with, OSError from the disk, and
        `Shortened`. What has arrived by then stays.
        """
        self._tell(self._plan.there.size)
        digesting = asyncio.create_task(self._follow())
        try:
            while not self._plan.complete:
                self._begin()
                await self._wait(digesting)
                self._collect()
            return await digesting == self._partial.digest
        finally:
            await _ended([digesting, *self._running])
            if self._settling:
                await asyncio.gather(self._settling, return_exceptions=True)

    def _begin(self) -> None:
        """Starts as many connections as there should be."""
        if self._parts.done() and self._width == 1 and not self._round:
            self._width = self._most
        if self._loop.time() < self._not_before:
            return
        while self._may_begin:
            piece = self._plan.take(self._most)
            if piece is None:
                return
            task = asyncio.create_task(self._get(piece))
            self._running[task] = piece, self._round

    @property
    def _may_begin(self) -> bool:
        return len(self._running) < min(self._width, self._share())

    async def _wait(self, digesting: asyncio.Task[str]) -> None:
        """Returns when something is to be done."""
        pause = None
        if self._plan.left and self._may_begin:
            pause = max(0.0, self._not_before - self._loop.time())
        events: list[asyncio.Future[Any]] = [digesting, *self._running]
        if not self._parts.done():
            events.append(self._parts)
        events.append(self._settling or self._begun)
        await asyncio.wait(events, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        if digesting.done():
            digesting.result()
        if self._settling and self._settling.done():
            settling, self._settling = self._settling, None
            self._begun = self._loop.create_future()
            settling.result()

    def _collect(self) -> None:
        """Takes back what finished connections have left, and decides how it goes on."""
        self._patience.progressed(self._plan.there.size)
        for task in [task for task in self._running if task.done()]:
            piece, begun = self._running.pop(task)
            self._plan.give_back(piece)
            try:
                task.result()
            except (RegistryBusy, ConnectionBroken, TimeoutError) as error:
                if begun == self._round:
                    self._pause(error)
            else:
                self._width = min(self._width + 1, self._most)

    def _pause(self, error: RegistryBusy | ConnectionBroken | TimeoutError) -> None:
        wish = error.retry_after if isinstance(error, RegistryBusy) else None
        pause = self._patience.failed(wish)
        if pause is None:
            raise _given_up(error, self._partial.digest) from None
        self._round += 1
        self._width = max(1, self._width // 2)
        self._not_before = self._loop.time() + pause

    async def _get(self, piece: Piece) -> None:
        """One request: fetches a piece and writes it."""
        size = self._plan.size
        part = (piece.start, piece.end) if piece.end - piece.start < size else ()
        async with self._repository.read_blob(self._partial.digest, *part) as stream:
            if stream.total not in (None, size):
                raise ConnectionBroken(f"the registry has {stream.total} bytes of it, not {size}")
            skipped = 0
            if part and stream.ranged:
                if not self._parts.done():
                    self._parts.set_result(None)
            elif part:
                if len(self._running) > 1:
                    raise ConnectionBroken("the registry sent all of it where a part was asked for")
                # The whole of it, then, over this connection.
                self._plan.give_back(piece)
                rest = self._plan.take_all()
                piece.start, piece.end, skipped = rest.start, rest.end, rest.start
            await self._copy(stream, piece, skipped)

    async def _copy(self, stream: BlobStream, piece: Piece, skipped: int) -> None:
        """Writes what comes, without the bytes to be skipped, as the bytes of this piece. Bytes
        beyond its end are dropped.
        """
        writing = _Writing(self, piece.start)
        come, until = 0, self._loop.time() + self._terms.stall
        try:
            async with asyncio.timeout_at(until) as patience:
                async for chunk in stream:
                    now = self._loop.time()
                    come += len(chunk)
                    if come >= _DRIP:
                        come, until = 0, now + self._terms.stall
                        patience.reschedule(until)
                    if skipped:
                        chunk, skipped = chunk[skipped:], max(0, skipped - len(chunk))
                    room = piece.end - writing.end
                    writing.add(chunk[:room] if len(chunk) > room else chunk)
                    if writing.due(now):
                        patience.reschedule(None)  # a slow disk is nobody's stall
                        await writing.write()
                        until += self._loop.time() - now
                        patience.reschedule(until)
                    if len(chunk) > room:
                        break
        except (ConnectionBroken, TimeoutError):
            if writing.end < piece.end:
                raise
        finally:
            await writing.finish()
        if writing.end < piece.end:
            raise ConnectionBroken("it ended too early")

    async def write(self, start: int, chunks: list[bytes], end: int) -> None:
        """For `_Writing` alone: what it has collected goes into the file."""
        await self._in_thread(self._partial.write, start, chunks)
        self._plan.arrived(start, end)
        self._tell(self._plan.there.size)
        self._grown.set()
        there, now = self._plan.there.size, self._loop.time()
        due = there - self._settled >= _SETTLED or now - self._settled_at >= _SETTLED_SECONDS
        if due and not self._settling:
            self._settled, self._settled_at = there, now
            self._settling = self._in_thread(self._settle, self._plan.size - there)
            self._begun.set_result(None)

    def _settle(self, missing: int) -> None:
        self._partial.settle()
        # Others fill the disk, too: better to end now than with its last byte.
        self._require_room(missing)

    async def _follow(self) -> str:
        """The digest, computed as far as the bytes are there without a gap."""
        done = 0
        while True:
            upto = min(self._plan.there.prefix, done + _DIGESTED)
            if upto == done < self._plan.size:
                self._grown.clear()
                await self._grown.wait()
                continue
            if digest := await self._in_thread(self._partial.follow, upto):
                return digest
            done = upto

    def _in_thread(self, function: Callable[..., Any], *given: Any) -> asyncio.Future[Any]:
        return self._loop.run_in_executor(self._threads, function, *given)


class _Writing:
    """What one connection has received: a block that grows while the one before is written."""

    def __init__(self, download: Download, start: int) -> None:
        self._download = download
        self._start = start
        self._chunks: list[bytes] = []
        self._since = asyncio.get_running_loop().time()
        self._task: asyncio.Task[None] | None = None
        self.end = start
        """The byte behind the last one received."""

    def add(self, chunk: bytes) -> None:
        if chunk:
            self._chunks.append(chunk)
            self.end += len(chunk)

    def due(self, now: float) -> bool:
        """Whether it is time to write, at this time."""
        enough = self.end - self._start >= _BLOCK or len(self._chunks) >= _CHUNKS
        return bool(self._chunks) and (enough or now - self._since >= _SECONDS)

    async def write(self) -> None:
        """Has a thread write what is here, when it has written what was here before."""
        await self._written()
        start, chunks, end = self._start, self._chunks, self.end
        self._start, self._chunks = end, []
        self._since = asyncio.get_running_loop().time()
        self._task = asyncio.create_task(self._download.write(start, chunks, end))

    async def finish(self) -> None:
        """Writes the rest. For a cancelled connection, too: what came is kept."""
        if self._chunks:
            await self.write()
        await self._written()

    async def _written(self) -> None:
        if self._task:
            # Whoever is cancelled here does not cancel the task.
            await asyncio.wait([self._task])
            task, self._task = self._task, None
            task.result()


def _given_up(error: Exception, digest: str) -> PronkError:
    reason = error.message if isinstance(error, PronkError) else "the registry fell silent"
    return PronkError(
        Code.REGISTRY_FAILED,
        f"sha256:{digest} could not be fetched: {reason}; what has arrived is kept, pull again to "
        "go on",
        retry_after=error.retry_after if isinstance(error, PronkError) else None,
    )


async def _ended(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancels tasks and waits for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
