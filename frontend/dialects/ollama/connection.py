"""What all streamed answers have to do with the connection that they go to."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable

from aiohttp import web

from ....protocol.errors import PronkError
from ....protocol.messages.generation import Caller
from ...answers import INTERNAL_ERROR, error_body
from ...callers import anonymous

_log = logging.getLogger(__name__)

CLIENT_PATIENCE = 300.0
"""Seconds for which a client may leave all that was sent to it unread."""

NDJSON = "application/x-ndjson"

_BUFFERED_AT_MOST = 32 * 1024
"""Bytes up to which asyncio's transports take everything without a wait."""

_NO_LINGER = struct.pack("ii", 1, 0)


def caller_of(request: web.Request) -> Caller:
    """Who asks."""
    return anonymous(request.transport.get_extra_info("peername") if request.transport else None)


def abort(request: web.Request) -> None:
    """Cuts the connection, and has the kernel drop what it still holds for the client, too."""
    if transport := request.transport:
        if not transport.is_closing():  # its descriptor may be another connection's by then
            connection = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        transport.abort()


async def stream(
    request: web.Request, take: Callable[[], Awaitable[tuple[bytes, bool]]]
) -> web.StreamResponse:
    """The answer line by line: `take` returns those that are ready, and whether they are the last.

    The status line waits for the first of them, so that what fails before it has a status of its
    own; what fails later is told on a last line.
    """
    data, last = await take()
    response = web.StreamResponse(headers={"Content-Type": NDJSON})
    try:
        try:
            await response.prepare(request)
            await _write(request, response, data)
            while not last:
                data, last = await take()
                await _write(request, response, data)
        except PronkError as error:
            await response.write(error_body(error.message) + b"\n")
        except (ConnectionError, TimeoutError):
            raise
        except Exception:
            _log.exception("a stream failed")
            await response.write(error_body(INTERNAL_ERROR) + b"\n")
        await response.write_eof()
    except (ConnectionError, TimeoutError):
        abort(request)  # the client is gone, or as good as gone
    return response


async def _write(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """Raises `TimeoutError` when the client takes nothing for `CLIENT_PATIENCE` seconds."""
    transport = request.transport
    if transport and transport.get_write_buffer_size() + len(data) < _BUFFERED_AT_MOST:
        await response.write(data)  # cannot have to wait, and a timeout costs more than the write
        return
    async with asyncio.timeout(CLIENT_PATIENCE):
        await response.write(data)
