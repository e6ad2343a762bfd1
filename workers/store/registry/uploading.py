"""Bringing one blob to a registry.

A blob goes in chunks, one behind the other, to the place that the registry names when the upload
begins, and counts as there once the registry has said so for the digest of the whole. Where a
connection breaks, the registry is asked how much it has, and the upload goes on from there. What an
upload that was given up leaves behind is no blob, and the registry's to clear away.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import aiohttp
from yarl import URL

from ....protocol.errors import Code, PronkError
from .failures import ConnectionBroken, RegistryBusy, failed
from .routes import follow, location
from .transport import Hop

if TYPE_CHECKING:
    from .client import Repository

T = TypeVar("T")

CHUNK = 64 * 1024 * 1024
"""Bytes of one request. Proxies in front of registries refuse what is much larger."""
SMALL = 1024 * 1024
"""Bytes of a blob that is sent in one piece, and of what is read from the disk at a time."""

_RANGE = re.compile(r"(?:bytes=)?0-(\d{1,19})")
_BYTES = {"Content-Type": "application/octet-stream"}


class _Gone(Exception):
    """The registry does not know the upload any more."""


class Upload:
    """One blob on its way. Lives on one event loop."""

    def __init__(
        self,
        repository: Repository,
        digest: str,
        path: Path,
        progress: Callable[[int], None],
        source: str | None = None,
    ) -> None:
        self._repository = repository
        self._digest = digest
        self._what = f"blob sha256:{digest[:12]}"
        self._path = path
        self._progress = progress
        self._source = source
        """Another repository of this registry that may have the blob."""
        self._size = 0
        self._sent = 0
        self._place: Hop | None = None
        self._lost = False
        """Whether the file could not be read while it was sent."""

    async def run(self) -> None:
        """Returns once the registry has the blob. Raises `PronkError`."""
        self._size = await self._from_disk(lambda: self._path.stat().st_size)
        patience = self._repository.patience
        pause, attempts, farthest = patience.pause, 0, 0
        while True:
            try:
                await self._go_on(again=attempts > 0)
                self._progress(self._size)
                return
            except (RegistryBusy, ConnectionBroken) as error:
                if self._lost:
                    raise self._removed() from None
                if self._sent >= farthest + SMALL:
                    pause, attempts, farthest = patience.pause, 0, self._sent
                attempts += 1
                wait = max(pause, error.retry_after or 0.0)
                if attempts >= patience.attempts or wait > patience.longest_pause:
                    raise
            await asyncio.sleep(wait)
            pause *= 2

    async def _go_on(self, *, again: bool) -> None:
        if again and await self._repository.blob_size(self._digest) == self._size:
            return  # only the answer to its last request was lost
        if again and self._place:
            try:
                self._sent = await self._how_far(self._place)
            except _Gone:
                self._place = None
        if self._place is None:
            self._sent = 0
            self._place = await self._begin()
        if self._place is None:  # the registry took it from another repository
            return
        try:
            if self._size <= SMALL:
                await self._finish(self._place, await self._from_disk(self._path.read_bytes))
                return
            kept = self._sent
            while self._sent < self._size:
                if await self._repository.wants_to_know_us():
                    # Who we are is found out without the bytes of a chunk.
                    self._sent = await self._how_far(self._place)
                self._place, self._sent = await self._append(self._place)
                if self._sent <= kept:
                    # It says that all is well each time, and would be sent bytes for ever.
                    raise ConnectionBroken(f"{self._place.host} does not keep what it takes")
                kept = self._sent
            await self._finish(self._place, b"")
        except _Gone:
            self._place = None
            raise ConnectionBroken("the registry lost the upload") from None

    async def _begin(self) -> Hop | None:
        """Where the bytes are to go; None where the registry has them."""
        if source := self._source:
            self._source = None  # asked for once
            try:
                return await self._post({"mount": f"sha256:{self._digest}", "from": source})
            except (RegistryBusy, ConnectionBroken):
                raise
            except PronkError:
                pass  # whoever may not read there may still write here
        return await self._post({})

    async def _post(self, query: dict[str, str]) -> Hop | None:
        site = await self._repository.site()
        start = site.hop(f"v2/{self._repository.path}/blobs/uploads/").with_query(query)
        async with self._repository.sent("POST", start, {}, lambda: b"", push=True) as response:
            if response.status == 201 and query:
                return None
            if response.status != 202:
                what = f"repository {self._repository.path}"
                raise await self._repository.refusal(response, start, what)
            return await self._next(response, start)

    async def _append(self, place: Hop) -> tuple[Hop, int]:
        """Sends a chunk; where the next one goes, and how much is there then."""
        start, end = self._sent, min(self._size, self._sent + CHUNK)
        headers = {
            **_BYTES,
            "Content-Length": str(end - start),
            "Content-Range": f"{start}-{end - 1}",
        }
        seconds = self._repository.patience.answer
        try:
            # Seconds for each piece to be taken, and for the answer behind the last one.
            async with asyncio.timeout(seconds) as limit:

                def taken(there: int) -> None:
                    limit.reschedule(asyncio.get_running_loop().time() + seconds)
                    self._progress(there)

                async with self._repository.sent(
                    "PATCH", place, headers, lambda: self._bytes(start, end, taken), push=True
                ) as response:
                    return await self._appended(response, place, end)
        except TimeoutError:
            raise ConnectionBroken(f"{place.host} takes no more bytes") from None

    async def _appended(
        self, response: aiohttp.ClientResponse, place: Hop, end: int
    ) -> tuple[Hop, int]:
        """What the answer to a chunk says."""
        if response.status == 404:
            raise _Gone
        if response.status == 416:  # it has more or less than we think
            raise ConnectionBroken(f"{place.host} lost a part of the {self._what}")
        if response.status not in (201, 202, 204):
            raise await self._repository.refusal(response, place, self._what)
        has = _RANGE.fullmatch(response.headers.get("Range", ""))
        return await self._next(response, place), min(int(has[1]) + 1, end) if has else end

    async def _how_far(self, place: Hop) -> int:
        """Bytes that the registry has of this upload."""
        async with self._repository.sent("GET", place, {}, push=True) as response:
            if response.status in (400, 404, 405, 416):
                # Distribution gives an upload up that broke off within a chunk.
                raise _Gone
            if response.status not in (200, 202, 204):
                raise await self._repository.refusal(response, place, self._what)
            has = _RANGE.fullmatch(response.headers.get("Range", ""))
            if "Location" in response.headers:
                self._place = await self._next(response, place)
        # `0-0` stands for nothing as well as for one byte: then the first byte is sent again, to a
        # registry that says 416 if it has it.
        sent = int(has[1]) + 1 if has and int(has[1]) else 0
        if sent > self._size:
            raise _Gone
        return sent

    async def _finish(self, place: Hop, body: bytes) -> None:
        # The place's own query is the registry's, and stays as it was written.
        joint = "&" if place.url.query_string else "?"
        whole = URL(f"{place.url}{joint}digest=sha256:{self._digest}", encoded=True)
        hop = place.at(whole)
        async with self._repository.sent(
            "PUT", hop, _BYTES, lambda: body, push=True, slow=True
        ) as response:
            if response.status == 404:
                raise _Gone
            if response.status not in (200, 201, 204):
                raise await self._repository.refusal(response, hop, self._what)
            given = response.headers.get("Docker-Content-Digest", f"sha256:{self._digest}")
        if given != f"sha256:{self._digest}":
            raise failed(f"{hop.host} took the {self._what} for another one")

    async def _next(self, response: aiohttp.ClientResponse, before: Hop) -> Hop:
        site = await self._repository.site()
        target = location(response.headers.get("Location", ""), before.url)
        if not site.is_at(target):
            raise failed(
                f"{site.host} wants models to be sent to another host, which Pronk refuses"
            )
        return await follow(site, target, before.url)

    async def _from_disk(self, read: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(read)
        except OSError:
            raise self._removed() from None

    def _removed(self) -> PronkError:
        return PronkError(
            Code.NOT_FOUND, f"the {self._what} was removed from the library while it was pushed"
        )

    async def _bytes(
        self, start: int, end: int, taken: Callable[[int], None]
    ) -> AsyncIterator[bytes]:
        while start < end:
            try:
                piece = await asyncio.to_thread(_read, self._path, start, min(SMALL, end - start))
            except OSError:
                piece = b""
            if not piece:
                self._lost = True
                raise ConnectionBroken("the file is gone")  # which ends the request
            yield piece
            start += len(piece)
            taken(start)


def _read(path: Path, start: int, length: int) -> bytes:
    # Opened anew each time: nothing is left open, and nothing is closed beneath a thread that
    # still reads, when the upload is cancelled.
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        return file.read(length)
