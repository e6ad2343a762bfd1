"""What a frontend does about bodies that are held back, and about what is no HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from pronk.frontend.malformed import quieten
from support.played import QUESTION, Stack, answering


async def said_to(stack: Stack, sent: bytes) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of the first answer to these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(sent)
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers["content-length"]))
    writer.close()
    return int(first.split()[1]), headers, json.loads(body)


async def test_a_client_that_waits_for_100_continue_gets_it(stack: Stack) -> None:
    answering(stack, "ok")
    status, answer, _ = await stack.request(
        "POST", "/api/chat", json={**QUESTION, "stream": False}, expect100=True
    )
    assert (status, answer["message"]["content"]) == (200, "ok")


CHAT = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("head", "status", "reason"),
    [
        (b"Content-Length: 999999999\r\nExpect: 100-continue\r\n", 413, "over the limit"),
        (b"Content-Length: 2\r\nExpect: a-miracle\r\n", 417, "100-continue"),
        (b"Content-Length: 2\r\nOrigin: http://evil\r\nExpect: 100-continue\r\n", 403, "origin"),
    ],
)
async def test_a_body_that_is_refused_is_not_asked_for(
    stack: Stack, head: bytes, status: int, reason: str
) -> None:
    first, headers, answer = await said_to(stack, CHAT + head + b"\r\n")
    assert first == status
    assert reason in answer["error"]
    assert headers["connection"] == "close", "nobody knows whether the body comes all the same"


@pytest.mark.parametrize(
    ("sent", "status", "reason"),
    [
        (b"\x16\x03\x01 hello\r\n\r\n", 400, "the request is not valid HTTP"),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 400, "the request is not valid HTTP"),
        (CHAT + b"Content-Length: -1\r\n\r\n", 400, "the request is not valid HTTP"),
        (CHAT + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "the request is not valid HTTP"),
        (CHAT + b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\n{}", 415, "Content-Encoding"),
    ],
)
async def test_what_is_not_http_is_refused_and_harms_nobody(
    stack: Stack, sent: bytes, status: int, reason: str
) -> None:
    first, headers, answer = await said_to(stack, sent)
    assert first == status
    assert reason in answer["error"]
    assert "aaa" not in answer["error"]
    assert headers["server"].startswith("Pronk/")
    assert "Python" not in str(headers)
    good, _, _ = await stack.request("GET", "/api/version")
    assert good == 200


async def test_what_is_not_http_is_counted_and_not_traced(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("aiohttp.server")
    filters = list(logger.filters)
    quieten()
    try:
        for _ in range(3):
            await said_to(stack, CHAT + b"Content-Length: -1\r\n\r\n")
    finally:
        logger.filters[:] = filters
    (told,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert told.getMessage().startswith("malformed HTTP (1 so far)")
    assert told.exc_info is None
