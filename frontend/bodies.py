"""Reading request bodies: bounded in bytes, in time, and in what they make of our memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import orjson
from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError
from aiohttp.web_exceptions import HTTPRequestEntityTooLarge, HTTPUnsupportedMediaType

from ..protocol.errors import Code, PronkError
from .expectations import ask_for_body
from .mending import mended

PATIENCE = 60.0
"""Seconds that a client may pause within a body."""

MAX_VALUES = 1_000_000
"""Largest number of values in a JSON body. Text costs its bytes; millions of empty lists would
cost us thirty times theirs."""

_ENCODINGS = {"", "identity", "gzip", "deflate"}


class BodyReader:
    """Reads the bodies of all requests, which together may take `budget` bytes while they arrive.

    A body counts as decompressed, chunk by chunk: no small body becomes a large one unseen.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._taken = 0

    async def read(self, request: web.Request, limit: int, setting: str) -> bytes:
        """The body, decompressed. `setting` is what an operator raises when `limit` is too small.

        Raises `PronkError` or an HTTP error: too large (413), of an encoding that is not known
        (415), broken or too slow, or one too many at a time.
        """
        encoding = request.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in _ENCODINGS:
            raise HTTPUnsupportedMediaType(
                text="the body's Content-Encoding is not supported; send it plain, or with gzip"
            )
        too_large = f"the body is over the limit of {limit} bytes ({setting})"
        if (request.content_length or 0) > limit:
            raise HTTPRequestEntityTooLarge(limit, request.content_length or 0, text=too_large)
        body = bytearray()
        try:
            async for chunk in chunks_of(request):
                if len(body) + len(chunk) > limit:
                    raise HTTPRequestEntityTooLarge(limit, len(body) + len(chunk), text=too_large)
                if self._taken + len(chunk) > self._budget:
                    raise PronkError(
                        Code.QUEUE_FULL,
                        "server busy, please try again: too many large requests are arriving",
                        retry_after=2.0,
                    )
                self._taken += len(chunk)
                body += chunk
        finally:
            self._taken -= len(body)
        return bytes(body)


async def chunks_of(request: web.Request) -> AsyncIterator[bytes]:
    """The body as it arrives, decompressed, for whom it is not to be kept whole.

    Raises `PronkError` or an HTTP error: broken, or too slow.
    """
    await ask_for_body(request)
    while True:
        try:
            async with asyncio.timeout(PATIENCE):
                chunk = await request.content.readany()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="the body did not arrive") from None
        except (ContentEncodingError, web.RequestPayloadError):
            raise PronkError(
                Code.INVALID_REQUEST, "the body is not what its headers say; it cannot be decoded"
            ) from None
        if not chunk:
            return
        yield chunk


def parse_object(body: bytes) -> dict[str, object]:
    """The JSON object that a body holds, whatever its Content-Type says.

    Text that is not quite Unicode is mended.

    Raises `PronkError` with the place of the mistake.
    """
    if not body.strip():
        raise PronkError(Code.INVALID_REQUEST, "missing request body")
    if len(body) > MAX_VALUES and sum(map(body.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise PronkError(Code.INVALID_REQUEST, f"the body holds more than {MAX_VALUES} JSON values")
    try:
        value = _loads(body)
    except orjson.JSONDecodeError as error:
        raise PronkError(
            Code.INVALID_REQUEST,
            f"the body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}",
        ) from None
    if not isinstance(value, dict):
        raise PronkError(Code.INVALID_REQUEST, "the body must be a JSON object, such as {…}")
    return value


def _loads(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if "surrogate" in error.msg and (whole := mended(body)) is not None:
            return orjson.loads(whole)
        raise
