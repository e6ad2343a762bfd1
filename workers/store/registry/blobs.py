"""The bytes of a blob on their way from a registry."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp

from .failures import ConnectionBroken
from .transport import FAULTS, Hop, Transport

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(?:(\d{1,19})|\*)")


@dataclass(frozen=True, slots=True)
class BlobStream:
    """Bytes of a blob, to be read once. They are not verified."""

    ranged: bool
    """Whether these are the bytes that were asked for; all of the blob, from its first byte on,
    where they are not."""
    total: int | None
    """Bytes of the whole blob, as far as the registry says."""
    length: int | None
    """Bytes that are to come here, as far as the registry says."""
    _response: aiohttp.ClientResponse
    _hop: Hop
    _transport: Transport

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Chunks of at most some 1.5 MiB, and `length` bytes in all.

        Raises `ConnectionBroken` where fewer or more come.
        """
        come = 0
        chunks = self._response.content.iter_any()
        while True:
            try:
                chunk = await anext(chunks, None)
            except FAULTS as error:
                raise self._transport.in_words(self._hop, error) from None
            if chunk is None:
                break
            come += len(chunk)
            if self.length is not None and come > self.length:
                raise ConnectionBroken(f"{self._hop.host} sent more of a blob than it said")
            yield chunk
        if self.length is not None and come < self.length:
            raise ConnectionBroken(f"the connection to {self._hop.host} broke")


def blob_stream(
    response: aiohttp.ClientResponse,
    hop: Hop,
    transport: Transport,
    start: int,
    end: int | None,
) -> BlobStream:
    """What a registry answered that was asked for these bytes, with 200 or 206.

    Raises `ConnectionBroken` where they are others: the next one may ask a better server.
    """
    length = response.content_length
    if response.status == 200:
        return BlobStream(False, length, length, response, hop, transport)
    found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if found:
        first, last = int(found[1]), int(found[2])
        total = int(found[3]) if found[3] else None
        good = first == start and last >= first and (end is None or last < end)
        good = good and (total is None or last < total)
        if good and length in (None, last - first + 1):
            return BlobStream(True, total, last - first + 1, response, hop, transport)
    raise ConnectionBroken(f"{hop.host} sent other bytes of a blob than it was asked for")
