"""A model whose queue stays full gets another replica on another device, and loses it again."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.library import add_model
from support.models import write_reciting_model
from support.server import PATIENCE, Server, ServerMaker, wait_for

DEVICES = json.dumps([{"name": f"sim{n}", "memory": "8GiB"} for n in range(2)])
ENDLESS = {"model": "endless", "prompt": "go", "options": {"temperature": 0, "num_ctx": 2048}}


@pytest.fixture
def server(make_server: ServerMaker) -> Server:
    """Two simulated devices, and `endless`, which answers one request at a time and never stops."""
    server = make_server(
        start=False, PRONK_DEVICES=DEVICES, PRONK_WORKERS="3", PRONK_NUM_PARALLEL="1"
    )
    weights = server.root / "endless.gguf"
    write_reciting_model(weights, ["01234567890"], context=2048)
    add_model(server.models, "endless", weights)
    server.start()
    return server


def holders(server: Server) -> list[psutil.Process]:
    """The workers that hold a model: those that have llama.cpp mapped."""
    found: list[psutil.Process] = []
    for worker in server.workers():
        with contextlib.suppress(psutil.Error, OSError):
            if "libllama" in Path(f"/proc/{worker.pid}/maps").read_text():
                found.append(worker)
    return found


@contextlib.contextmanager
def stream(server: Server) -> Iterator[socket.socket]:
    """Asks for an answer without an end. Its lines are read by nobody but the test."""
    body = json.dumps(ENDLESS).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        head = (
            f"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        client.sendall(head.encode() + body)
        yield client


def first_line(client: socket.socket) -> None:
    received = b""
    while b'"done":false' not in received:
        data = client.recv(65536)
        assert data, received
        received += data


def test_a_busy_model_gets_a_second_replica_by_itself_and_loses_it_when_it_is_idle(server: Server):
    with contextlib.ExitStack() as streams:
        first_line(streams.enter_context(stream(server)))
        alone = server.loaded()
        second = streams.enter_context(stream(server))
        first_line(second)  # nobody but a second replica can begin it: the first one never ends
        (both,) = server.loaded()
        assert both["name"] == "endless:latest"
        assert both["size"] == 2 * alone[0]["size"]
        assert both["size_vram"] == 2 * alone[0]["size_vram"] > 0
        wait_for(lambda: len(holders(server)) == 2, "both, and none that measures any more")
    wait_for(lambda: len(holders(server)) == 1, "the end of the replica that nobody needs")
    (entry,) = server.loaded()
    assert entry["size"] == alone[0]["size"]
