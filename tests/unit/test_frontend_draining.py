"""A frontend that drains: no new connections, time for what is under way, and its own exit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest

from pronk.frontend import draining
from pronk.protocol.messages.fleet import BeginDraining, Draining, Hello
from pronk.protocol.settings import Settings
from pronk.protocol.state import StateDirectory
from support.frontends import process
from support.played import (
    PATIENCE,
    QUESTION,
    PlayedScheduler,
    PlayedStore,
    Stack,
    answering,
    running,
    starting,
    until,
)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections are closed at once, where a test does not say otherwise."""
    monkeypatch.setattr(draining, "KEEP_ALIVE_SECONDS", 0.0)


@pytest.fixture
async def stack(state: StateDirectory) -> AsyncIterator[Stack]:
    async with running(state, drain_timeout=60) as stack:
        yield stack


def drained(stack: Stack) -> asyncio.Event:
    """Set when nothing is under way in the frontend any more."""
    done = asyncio.Event()
    stack.frontend._on_drained = done.set
    return done


async def refuses(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


async def test_streams_are_finished_and_no_connection_is_accepted(stack: Stack) -> None:
    done = drained(stack)
    starting(stack, "Hi")
    async with stack.client.post("/api/chat", json=QUESTION) as response:
        await response.content.readline()
        stack.scheduler.tell(BeginDraining())
        await until(lambda: stack.scheduler.all(Draining), "the scheduler is told")
        assert await refuses(stack.port)
        assert not done.is_set()
        stack.scheduler.workers[0].says(" there").finished()
        lines = [json.loads(line) for line in (await response.read()).splitlines()]
    assert [line["message"]["content"] for line in lines[:-1]] == [" there"]
    assert lines[-1]["done"] is True
    await asyncio.wait_for(done.wait(), PATIENCE)


async def test_a_connection_that_is_kept_alive_is_told_to_end(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "KEEP_ALIVE_SECONDS", 60.0)
    done = drained(stack)
    answering(stack, "Hi")
    _, _, headers = await stack.request("GET", "/api/version")
    assert headers.get("Connection") != "close"
    stack.frontend.drain()
    await until(lambda: stack.scheduler.all(Draining), "it drains")
    assert not done.is_set()
    # The client has one connection, and no other can be made.
    async with stack.client.post("/api/chat", json=QUESTION) as response:
        assert response.headers["Connection"] == "close"
        assert json.loads((await response.read()).splitlines()[-1])["done"] is True
    await asyncio.wait_for(done.wait(), PATIENCE)
    with pytest.raises(aiohttp.ClientConnectionError):
        await stack.client.get("/api/version")


async def test_an_idle_connection_does_not_hold_up_the_end(stack: Stack) -> None:
    done = drained(stack)
    await stack.request("GET", "/api/version")
    stack.frontend.drain()
    await asyncio.wait_for(done.wait(), PATIENCE)


async def test_what_came_while_the_process_stood_still_is_answered(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "KEEP_ALIVE_SECONDS", draining._LOOK_SECONDS)
    done = drained(stack)
    starting(stack, "Hi")
    body = json.dumps(QUESTION).encode()
    with socket.create_connection(("127.0.0.1", stack.port)) as client:
        client.settimeout(PATIENCE)
        await until(lambda: len(stack.frontend._runner.server.connections) == 1, "it is accepted")
        stack.frontend.drain()
        await asyncio.sleep(0)
        client.sendall(b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\n")
        client.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        time.sleep(4 * draining._LOOK_SECONDS)  # noqa: ASYNC251  the frontend lives on this loop
        (worker,) = await until(lambda: stack.scheduler.workers, "a worker has it")
        assert not done.is_set()
        worker.says(" there").finished()
        await asyncio.wait_for(done.wait(), PATIENCE)
        assert b'"done":true' in await asyncio.to_thread(client.recv, 1 << 16)


@pytest.mark.parametrize("limit", [0.0, 0.2])
async def test_beyond_the_limit_a_stream_gets_its_end(stack: Stack, limit: float) -> None:
    done = drained(stack)
    starting(stack, "Hi")
    async with stack.client.post("/api/chat", json=QUESTION) as response:
        await response.content.readline()
        stack.frontend.drain()
        stack.frontend.drain(limit)  # the second word counts
        await asyncio.wait_for(done.wait(), PATIENCE)
        await stack.stop_frontend()
        assert "shutting down" in json.loads(await response.content.read())["error"]


async def test_a_word_to_drain_that_comes_before_it_accepts_is_heeded(
    state: StateDirectory,
) -> None:
    stack = Stack(state, Settings(state=state.root))
    try:
        done = drained(stack)
        stack.frontend.drain()
        await asyncio.sleep(0)
        await stack.frontend.start()
        await asyncio.wait_for(done.wait(), PATIENCE)
        assert await refuses(stack.port)
    finally:
        await stack.close()


async def test_a_new_scheduler_hears_that_a_frontend_drains(stack: Stack) -> None:
    starting(stack, "Hi")
    async with stack.client.post("/api/chat", json=QUESTION) as response:
        await response.content.readline()
        stack.frontend.drain()
        await until(lambda: stack.scheduler.all(Draining), "it drains")
        stack.restart_scheduler()
        await until(lambda: stack.scheduler.all(Draining), "the next scheduler is told")
        hello = stack.scheduler.all(Hello)[0]
        assert len(hello.requests) == 1


# The process


@contextlib.asynccontextmanager
async def playing(state: StateDirectory) -> AsyncIterator[PlayedScheduler]:
    """A scheduler and a store for processes; every answer is begun and not ended."""
    scheduler, store = PlayedScheduler(state), PlayedStore(state)
    scheduler.on_generate = lambda header: scheduler.worker(header).started().says("Hi") and None
    try:
        yield scheduler
    finally:
        scheduler.close()
        store.close()


async def first_line(port: int) -> tuple[aiohttp.ClientSession, aiohttp.ClientResponse]:
    client = aiohttp.ClientSession(f"http://127.0.0.1:{port}")
    response = await client.post("/api/chat", json=QUESTION)
    await response.content.readline()
    return client, response


async def test_sigusr1_lets_a_process_finish_while_another_takes_the_connections(
    state: StateDirectory,
) -> None:
    async with playing(state) as scheduler:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            with process(state, 1, stdin=listener) as child:
                client, response = await first_line(port)
                child.send_signal(signal.SIGUSR1)
                await until(lambda: scheduler.all(Draining), "it drains")
                with process(state, 1, stdin=listener):
                    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as other:
                        assert (await other.get("/api/version")).status == 200
                    assert child.poll() is None
                    scheduler.workers[0].says(" there").finished()
                    rest = await response.read()
                    assert json.loads(rest.splitlines()[-1])["done"] is True
                    assert await asyncio.to_thread(child.wait, PATIENCE) == 0
                await client.close()


async def test_sigterm_ends_a_draining_process_at_once(state: StateDirectory) -> None:
    async with playing(state) as scheduler:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            with process(state, 1, stdin=listener) as child:
                client, response = await first_line(port)
                child.send_signal(signal.SIGUSR1)
                await until(lambda: scheduler.all(Draining), "it drains")
                child.terminate()
                assert "shutting down" in json.loads(await response.read())["error"]
                assert await asyncio.to_thread(child.wait, PATIENCE) == 0
                await client.close()


def test_the_limit_is_a_setting(state: StateDirectory) -> None:
    assert Settings(state=state.root, drain_timeout="5m").drain_timeout == 300.0
