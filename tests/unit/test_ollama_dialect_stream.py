"""A stream of lines whose client goes away at the worst moment."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import aiohttp
import pytest
from aiohttp import web

from pronk.frontend.answers import errors_as_json
from pronk.frontend.dialects.ollama.connection import stream


@pytest.mark.parametrize("lines_before", [0, 1])
async def test_a_connection_that_ends_before_a_line_is_no_fault_of_ours(
    lines_before: int, caplog: pytest.LogCaptureFixture
) -> None:
    ended = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        left = lines_before

        async def take() -> tuple[bytes, bool]:
            nonlocal left
            if left == 0:
                # As when a client leaves: the transport is closing, and nobody was told yet.
                assert request.transport
                request.transport.close()
            left -= 1
            return b"line\n", left < 0

        try:
            return await stream(request, take)
        finally:
            ended.set()

    app = web.Application(middlewares=[errors_as_json])
    app.add_routes([web.get("/", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        address, port = runner.addresses[0]
        with caplog.at_level(logging.INFO), contextlib.suppress(aiohttp.ClientError):
            async with aiohttp.ClientSession() as client:
                await (await client.get(f"http://{address}:{port}/")).read()
        await asyncio.wait_for(ended.wait(), 10)
    finally:
        await runner.cleanup()
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
