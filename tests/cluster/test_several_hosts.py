"""A server, and workers that join it over tcp with a state and a library of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.keys import Hosts
from support.library import add_model
from support.models import write_reciting_model
from support.server import PATIENCE, Server, ServerMaker, free_ports, wait_for

ADDRESS = "127.0.0.2"
LONG = {
    "model": "endless",
    "prompt": "go",
    "options": {"temperature": 0, "num_ctx": 32768, "num_predict": 4000},
}
SHORT = {"model": "endless", "prompt": "go", "stream": False, "options": {"num_predict": 2}}
CHAT = {"model": "demo", "stream": False, "messages": [{"role": "user", "content": "Who are you?"}]}


@pytest.fixture
def server(make_server: ServerMaker, hosts: Hosts) -> Server:
    """A server with one worker of its own, which listens for those of other hosts."""
    port = free_ports(2, ADDRESS)
    server = make_server(
        start=False,
        PRONK_WORKERS="1",
        PRONK_KEEP_ALIVE="-1",
        PRONK_LISTEN_TCP=f"{ADDRESS}:{port}",
        PRONK_KEYS=str(hosts.server),
    )
    weights = server.root / "endless.gguf"
    write_reciting_model(weights, ["01234567890"], context=32768)
    add_model(server.models, "endless", weights)
    server.start()
    return server


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


def join(make_server: ServerMaker, server: Server, keys: Path, **settings: str) -> Server:
    """Another host's workers."""
    other = make_server(start=False, PRONK_WORKERS="1", **settings)
    address = server.environment["PRONK_LISTEN_TCP"]
    other.command = ["worker", "--join", address, "--keys", str(keys)]
    other.start()
    return other


def answer(server: Server, path: str, question: dict[str, Any]) -> dict[str, Any]:
    response = httpx.post(f"{server.url}{path}", json=question, timeout=PATIENCE)
    assert response.status_code == 200, response.text + server.logs()
    return response.json()


def said(server: Server, log: str, words: str) -> bool:
    file = server.state / "logs" / f"{log}.log"
    return file.exists() and words in file.read_text()


@pytest.fixture
def busy(server: Server) -> Iterator[Server]:
    """The server, whose own worker has a request that does not end."""
    begun, enough = threading.Event(), threading.Event()
    question = {"model": "endless", "prompt": "go", "options": {"num_predict": -1}}

    def read() -> None:
        url = f"{server.url}/api/generate"
        with httpx.stream("POST", url, json=question, timeout=PATIENCE) as answer:
            for _ in answer.iter_lines():
                begun.set()
                if enough.is_set():
                    return

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        assert begun.wait(PATIENCE)
        yield server
        assert not reading.done()
        enough.set()


def test_a_chat_is_answered_by_a_worker_of_another_host_and_by_its_successor(
    busy: Server, make_server: ServerMaker, hosts: Hosts
):
    other = join(make_server, busy, hosts.client("box"))
    assert answer(busy, "/api/chat", CHAT)["message"]["content"]
    worker = other.worker_with_model()
    worker.kill()
    assert answer(busy, "/api/chat", CHAT)["message"]["content"]
    assert other.worker_with_model().pid != worker.pid
    assert {model["name"] for model in busy.loaded()} == {"demo:latest", "endless:latest"}


def test_the_stream_of_a_worker_of_another_host_goes_on_when_that_dies(
    server: Server, make_server: ServerMaker, hosts: Hosts
):
    answer(server, "/api/chat", CHAT)  # the server's own worker has a model
    box = hosts.client("box")
    other = join(make_server, server, box, PRONK_MODELS=str(server.models))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read, server)
        worker = other.worker_with_model()
        wait_for(lambda: said(server, "scheduler", "endless:latest is loaded"), "it is loaded")
        worker.kill()
        lines = reading.result(PATIENCE)
    assert lines[-1]["done"]
    said_whole = "".join(line["response"] for line in lines)
    assert said_whole == answer(server, "/api/generate", LONG | {"stream": False})["response"]
    assert answer(server, "/api/generate", SHORT)["done"]


def read(server: Server) -> list[dict[str, Any]]:
    with httpx.stream(
        "POST", f"{server.url}/api/generate", json=LONG, timeout=PATIENCE
    ) as response:
        return [json.loads(line) for line in response.iter_lines()]


def test_strangers_hear_why_they_do_not_get_in_and_the_server_counts_them(
    server: Server, make_server: ServerMaker, hosts: Hosts
):
    other = join(make_server, server, hosts.client("stranger", known=False))
    wait_for(lambda: said(other, "worker-00", "the key is not known there"), "the worker's log")
    wait_for(lambda: said(server, "scheduler", "unknown key (1 so far)"), "the scheduler's log")
    assert answer(server, "/api/chat", CHAT)["done"]


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_what_is_missing_is_told_before_anything_starts(
    tmp_path: Path, make_server: ServerMaker, command: str
):
    settings = {"PRONK_LISTEN_TCP": f"{ADDRESS}:11500"} if command == "serve" else {}
    idle = make_server(start=False, **settings)
    arguments = ["worker", "--join", f"{ADDRESS}:11500"] if command == "worker" else ["serve"]
    result = subprocess.run(
        [sys.executable, "-m", "pronk.frontend.cli", *arguments],
        env=idle.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "pronk keys create" in result.stderr
