"""Processes leave when they are told to, and no client notices."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import psutil
import pytest

from pronk.protocol.messages.control import ProcessEntry
from pronk.protocol.messages.fleet import Role
from pronk.protocol.state import StateDirectory
from support.library import add_model
from support.models import write_reciting_model
from support.server import PATIENCE, Server, ServerMaker, servers, wait_for

# One server for all of them: each waits until every process of it is in its place again.
pytestmark = pytest.mark.xdist_group("draining")

COUNT = 2500
LONG = {
    "model": "endless",
    "prompt": "go",
    "options": {"temperature": 0, "num_ctx": 32768, "num_predict": COUNT},
}
SHORT = {"model": "endless", "prompt": "go", "stream": False, "options": {"num_predict": 2}}


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    """A server whose model `endless` answers `COUNT` tokens to `LONG`."""
    with servers() as make:
        server = make(start=False, PRONK_FRONTENDS="2", PRONK_WORKERS="2")
        weights = server.root / "endless.gguf"
        write_reciting_model(weights, ["01234567890"], context=32768)
        add_model(server.models, "endless", weights)
        server.start()
        yield server


@pytest.fixture
def server(shared: Server) -> Server:
    wait_for(lambda: len(shared.entries()) == 4, "two frontends and two workers")
    return shared


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def pronk(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [sys.executable, "-m", "pronk.frontend.cli", *arguments],
            env=server.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"{late}; it said {late.stdout!r}\n{server.logs()}") from None


def frontends(server: Server) -> dict[str, int]:
    """The pid of each frontend, by name."""
    there = server.entries()
    return {entry.name: entry.pid for entry in there if entry.role is Role.FRONTEND}


def state(server: Server, name: str) -> str:
    """What the process of this name does; "away" while none has it."""
    return next((entry.state for entry in server.entries() if entry.name == name), "away")


def holder(server: Server) -> ProcessEntry:
    """The worker that has the model, and most of its requests."""
    holders = [entry for entry in server.entries() if entry.model == "endless:latest"]
    return max(holders, key=lambda entry: entry.requests)


def of(entry: ProcessEntry) -> tuple[str, psutil.Process]:
    """Name and process of one that the scheduler listed."""
    return entry.name, psutil.Process(entry.pid)


class Stream:
    """Reads `LONG` in the background; its text is there as soon as it is whole."""

    def __init__(self, server: Server, pool: ThreadPoolExecutor) -> None:
        self._url = f"{server.url}/api/generate"
        self._started = threading.Event()
        self._text: Future[str] = pool.submit(self._read)
        assert self._started.wait(PATIENCE)

    def _read(self) -> str:
        text = ""
        with httpx.stream("POST", self._url, json=LONG, timeout=PATIENCE) as answer:
            for line in map(json.loads, answer.iter_lines()):
                self._started.set()
                assert "error" not in line, line
                text += line["response"]
        assert line["eval_count"] == COUNT
        return text

    @property
    def is_over(self) -> bool:
        return self._text.done()

    def is_right(self) -> bool:
        return self._text.result(PATIENCE) == "0123456789" * (COUNT // 10)


def held(server: Server, pool: ThreadPoolExecutor) -> tuple[Stream, str, psutil.Process]:
    """A stream under way, and the name and process of its worker, which stands still: the stream
    goes on for as long as a test needs.
    """
    while True:
        stream = Stream(server, pool)
        name, worker = of(holder(server))
        worker.suspend()
        if holder(server).requests and not stream.is_over:
            return stream, name, worker
        worker.resume()  # it was faster than we are
        assert stream.is_right()


def ask(server: Server) -> int:
    answer = httpx.post(f"{server.url}/api/generate", json=SHORT, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    return answer.json()["eval_count"]


def test_a_drained_worker_finishes_its_stream_while_another_takes_what_is_new(
    server: Server, pool: ThreadPoolExecutor
):
    stream, name, worker = held(server, pool)
    draining = pool.submit(pronk, server, "drain", "worker", name)
    wait_for(lambda: state(server, name) == "draining", "the worker drains")
    assert ask(server) == 2
    worker.resume()
    assert stream.is_right()
    done = draining.result(PATIENCE)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"{name} (pid {worker.pid}) is draining, 1 request left"
    assert lines[-1] == f"{name} (pid {worker.pid}) has ended"
    wait_for(lambda: not worker.is_running(), "the end of the worker")
    wait_for(lambda: state(server, name) == "blank", "a blank worker in its place")


def test_a_signal_has_a_worker_drain_as_well(server: Server, pool: ThreadPoolExecutor):
    stream = Stream(server, pool)
    name, worker = of(holder(server))
    worker.send_signal(signal.SIGUSR1)
    assert stream.is_right()
    wait_for(lambda: not worker.is_running(), "the end of the worker")
    wait_for(lambda: state(server, name) == "blank", "a blank worker in its place")
    log = (server.state / "logs" / f"{name}.log").read_text()
    assert f"worker {name}: ready → draining" in log


def test_what_is_not_done_at_the_limit_goes_on_elsewhere(server: Server, pool: ThreadPoolExecutor):
    stream, name, worker = held(server, pool)
    draining = pool.submit(pronk, server, "drain", "worker", name, "--timeout", "0")
    wait_for(lambda: state(server, name) == "draining", "the worker drains")
    worker.resume()
    assert stream.is_right()
    done = draining.result(PATIENCE)
    assert done.returncode == 0, done.stderr


def test_frontends_are_replaced_one_after_the_other_and_no_request_fails(
    server: Server, pool: ThreadPoolExecutor
):
    before = frontends(server)
    stream = Stream(server, pool)
    over = threading.Event()

    def ask_and_ask() -> int:
        asked = 0
        with httpx.Client(timeout=PATIENCE) as client:  # which keeps its connection
            while not over.is_set():
                assert client.post(f"{server.url}/api/generate", json=SHORT).status_code == 200
                asked += 1
        return asked

    asking = pool.submit(ask_and_ask)
    done = pronk(server, "drain", "frontend")
    over.set()
    assert done.returncode == 0, done.stderr
    assert asking.result(PATIENCE) > 2
    assert stream.is_right()
    after = frontends(server)
    assert set(after) == set(before)
    assert not set(after.values()) & set(before.values())


def test_what_is_not_there_is_one_line_and_status_1(server: Server):
    for kind in ("worker", "frontend", "device"):
        done = pronk(server, "drain", kind, "nobody")
        assert done.returncode == 1
        assert done.stderr.startswith(f"pronk: there is no {kind} 'nobody'; there are: ")
        assert len(done.stderr.splitlines()) == 1
    assert all(entry.state != "draining" for entry in server.entries())


def test_status_lists_every_process(server: Server):
    def states() -> set[tuple[str, ...]]:
        return {(entry.name, str(entry.pid), entry.state) for entry in server.entries()}

    before, done = states(), pronk(server, "status")
    while before != states():  # a worker that begins or ends just now is not what is tested
        before, done = states(), pronk(server, "status")
    assert done.returncode == 0
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["NAME", "PID", "STATE", "MODEL", "REQUESTS", "DEVICES", "INCARNATION"]
    assert {tuple(row.split()[:3]) for row in rows[: len(before)]} == before
    assert rows[len(before) :] == ["requests that wait for a worker: 0"]


def test_without_a_server_the_commands_say_so(make_server: ServerMaker):
    never, stopped = make_server(start=False), make_server(start=False)
    StateDirectory(stopped.state).prepare()
    with socket.socket(socket.AF_UNIX) as killed:  # a scheduler that was killed leaves its socket
        killed.bind(StateDirectory(stopped.state).control.removeprefix("ipc://"))
    for server, arguments in ((never, ("drain", "frontend")), (stopped, ("status",))):
        done = pronk(server, *arguments)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"pronk: no server runs on PRONK_STATE={server.state}; ")
