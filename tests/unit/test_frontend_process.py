"""The frontend's process: how it begins and how it ends."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess

import aiohttp
import pytest

from pronk.protocol.errors import Code
from pronk.protocol.messages.failure import Failure
from pronk.protocol.messages.fleet import (
    Hello,
    Refused,
)
from pronk.protocol.role import CANNOT_START
from pronk.protocol.state import StateDirectory
from support.frontends import process
from support.played import (
    PATIENCE,
    QUESTION,
    PlayedScheduler,
    Stack,
    starting,
    until,
)


async def test_at_shutdown_every_stream_gets_its_end(stack: Stack) -> None:
    starting(stack, "Hi")
    async with stack.client.post("/api/chat", json=QUESTION) as response:
        await response.content.readline()
        whole = asyncio.create_task(
            stack.request("POST", "/api/chat", json={**QUESTION, "stream": False})
        )
        await until(lambda: len(stack.scheduler.workers) == 2, "two are under way")
        await stack.stop_frontend()
        # aiohttp raises here if the chunked body is not terminated as it has to be.
        rest = json.loads(await response.content.read())
        assert "shutting down" in rest["error"]
        status, error, _ = await whole
        assert status == 503
        assert "shutting down" in error["error"]
    for worker in stack.scheduler.workers:
        await until(lambda worker=worker: worker.cancelled, "the workers are told")
    assert not list((stack.state.root / "run").glob("frontend-*"))


# The process


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_the_process_serves_an_inherited_socket_and_leaves_when_told(
    state: StateDirectory, signum: signal.Signals
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with process(state, 1, stdin=listener) as child:
            async with (
                aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
                client.get("/api/version") as response,
            ):
                assert response.status == 200
            child.send_signal(signum)
            assert await asyncio.to_thread(child.wait, PATIENCE) == 0
    assert not list((state.root / "run").glob("frontend-*"))


async def test_a_process_that_the_scheduler_refuses_ends_with_status_78(
    state: StateDirectory,
) -> None:
    scheduler = PlayedScheduler(state)
    with process(state, 0, stdin=subprocess.DEVNULL) as child:
        await until(lambda: scheduler.all(Hello), "it announces itself")
        scheduler.tell(Refused(Failure(Code.INVALID_REQUEST, "wrong version")))
        _, errors = await asyncio.to_thread(child.communicate, None, PATIENCE)
        assert child.returncode == CANNOT_START
        assert errors.splitlines()[-1].endswith("the scheduler refuses it: wrong version")
    scheduler.close()


def test_an_occupied_port_is_one_line_and_status_78(state: StateDirectory) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with process(state, port, stdin=subprocess.DEVNULL) as child:
            _, errors = child.communicate(timeout=PATIENCE)
            assert child.returncode == CANNOT_START
            assert len(errors.splitlines()) == 1
            assert f"127.0.0.1:{port}" in errors
