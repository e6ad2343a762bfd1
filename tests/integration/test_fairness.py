"""One client's many requests do not delay another's, and fill nobody's place but their own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import httpx
import pytest

from support.server import PATIENCE, Server, ServerMaker

HEAVY, LIGHT = "127.0.0.1", "127.0.0.2"
MANY = 60
SHORT = {
    "model": "demo",
    "prompt": "Count to ten.",
    "stream": False,
    "options": {"num_predict": 20, "temperature": 0},
}
LONG = {
    "model": "demo",
    "prompt": "hi",
    "options": {"ignore_eos": True, "num_predict": 1_000_000, "temperature": 0},
}


@pytest.fixture(autouse=True)
def _two_addresses() -> None:
    try:
        with socket.socket() as probe:
            probe.bind((LIGHT, 0))
    except OSError:
        pytest.skip(f"this host has no {LIGHT}")


def client(server: Server, address: str) -> httpx.AsyncClient:
    """A client on a machine of its own, as the server sees it."""
    return httpx.AsyncClient(
        base_url=server.url,
        timeout=PATIENCE,
        transport=httpx.AsyncHTTPTransport(
            local_address=address, limits=httpx.Limits(max_connections=None)
        ),
    )


@contextlib.asynccontextmanager
async def held(heavy: httpx.AsyncClient) -> AsyncIterator[None]:
    """The one slot of the server is busy as long as this lasts."""
    async with heavy.stream("POST", "/api/generate", json=LONG) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        yield
        await lines.aclose()


async def test_one_clients_many_requests_do_not_delay_another(make_server: ServerMaker) -> None:
    server = make_server(PRONK_NUM_PARALLEL="1", PRONK_WORKERS="1", PRONK_MAX_QUEUE=str(MANY))
    finished: list[tuple[str, int]] = []
    answers: list[asyncio.Task[httpx.Response]] = []
    refused = asyncio.Event()

    async def ask(caller: str, client: httpx.AsyncClient) -> httpx.Response:
        answer = await client.post("/api/generate", json=SHORT)
        finished.append((caller, answer.status_code))
        if answer.status_code == 503:
            refused.set()
        return answer

    async with client(server, HEAVY) as heavy, client(server, LIGHT) as light:
        async with held(heavy):
            answers += [asyncio.create_task(ask("heavy", heavy)) for _ in range(MANY + 1)]
            # The one refusal says that all others wait in a queue that is full by now.
            async with asyncio.timeout(PATIENCE):
                await refused.wait()
            assert finished == [("heavy", 503)]
            refused.clear()
            answers.append(asyncio.create_task(ask("light", light)))
            # It has a place all the same, and the heavy caller one less.
            async with asyncio.timeout(PATIENCE):
                await refused.wait()
            assert finished == [("heavy", 503)] * 2
        responses = await asyncio.gather(*answers)
    served = finished[2:]
    assert sorted(served) == [("heavy", 200)] * (MANY - 1) + [("light", 200)]
    assert served.index(("light", 200)) <= 3
    for response in responses:
        if response.status_code == 503:
            assert int(response.headers["Retry-After"]) >= 1
            assert "try again" in response.json()["error"]


async def test_what_waits_for_too_long_gets_a_503_with_the_time_of_the_next_try(
    make_server: ServerMaker,
) -> None:
    server = make_server(PRONK_NUM_PARALLEL="1", PRONK_WORKERS="1", PRONK_QUEUE_TIMEOUT="100ms")
    async with client(server, HEAVY) as heavy:
        # While its model is loaded, a request waits, too.
        await heavy.post("/api/generate", json={"model": "demo"})
        async with held(heavy):
            answer = await heavy.post("/api/generate", json=SHORT)
        assert answer.status_code == 503
        assert int(answer.headers["Retry-After"]) >= 1
        assert "PRONK_QUEUE_TIMEOUT" in answer.json()["error"]
