"""Real servers for the tests: `pronk serve` on a free loopback port, in directories of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from pronk.protocol.messages.control import ListProcesses, ProcessEntry, ProcessList
from pronk.protocol.questions import Questions
from pronk.protocol.state import StateDirectory

PATIENCE = 120.0
"""Seconds that a test waits for a condition before it fails: far more than it ever takes."""


T = TypeVar("T")


def wait_for(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """The first true value of `condition`, asked again and again."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {patience:g} s in vain: {what}")


def free_ports(count: int, address: str = "127.0.0.1") -> int:
    """The first of so many ports in a row on which nobody listens just now."""
    for _ in range(100):
        first = free_port()
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, OverflowError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server((address, port)))
            return first
    raise AssertionError(f"no {count} free ports in a row")


_MOST_KEPT = 64
_kept: deque[socket.socket] = deque()
"""The ports that were given out last, bound, so that the kernel gives them to nobody else before
they are listened on. Who listens there sets SO_REUSEADDR, as all our servers do."""


def free_port() -> int:
    """A port on which nobody listens."""
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind(("127.0.0.1", 0))
    _kept.append(probe)
    if len(_kept) > _MOST_KEPT:
        _kept.popleft().close()
    return probe.getsockname()[1]


class Server:
    """One running `pronk serve` with its own state directory and model library.

    Every worker has one engine thread, so that several servers share the machine peacefully.
    """

    def __init__(self, root: Path, **settings: str) -> None:
        self.root = root
        self.state = root / "state"
        self.models = root / "models"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PRONK_", "OLLAMA_"))
        }
        self.environment = inherited | {
            "PRONK_HOST": f"127.0.0.1:{self.port}",
            "PRONK_STATE": str(self.state),
            "PRONK_MODELS": str(self.models),
            "PRONK_THREADS": "1",
            "PRONK_WORKERS": "2",
            "PRONK_FRONTENDS": "1",
            **settings,
        }
        self.command = ["serve"]
        self.process: subprocess.Popen[str] | None = None
        self.console: list[str] = []
        """The lines of it that were read."""
        self._unread = b""
        """What was read behind them."""
        self.family: list[psutil.Process] = []

    def start(self) -> None:
        """Starts the server and returns when it said that it is ready."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pronk.frontend.cli", *self.command],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a Ctrl-C at the test run is not for the server
        )
        self.ready_line = self.read_until("ready")

    def read_until(self, word: str) -> str:
        """The first line of the console that has `word` in it."""
        seen: list[str] = []
        deadline = time.monotonic() + PATIENCE
        while line := self._read_line(deadline):
            seen.append(line)
            self.console.append(line)
            if word in line:
                return line.rstrip()
        raise AssertionError(f"no {word!r} on the console:\n{''.join(seen)}\n{self.logs()}")

    def _read_line(self, deadline: float) -> str:
        """The next line of the console; empty at its end, and where none comes in time."""
        assert self.process
        assert self.process.stdout
        # Not through the file: what it reads at once it keeps, and nobody can wait for that.
        while b"\n" not in self._unread and time.monotonic() < deadline:
            if not select.select([self.process.stdout], [], [], 0.2)[0]:
                continue
            if not (data := os.read(self.process.stdout.fileno(), 65536)):
                break
            self._unread += data
        line, end, rest = self._unread.partition(b"\n")
        if not end:
            return ""
        self._unread = rest
        return line.decode() + "\n"

    def logs(self) -> str:
        """What every process of this server wrote, for the message of a failed test."""
        files = sorted((self.state / "logs").glob("*")) if self.state.exists() else []
        return "\n".join(f"--- {file.name}\n{file.read_text()[-3000:]}" for file in files)

    def written(self, role: str) -> str:
        """What processes of one role wrote, as far as supervisord has passed it on by now."""
        files = (self.state / "logs").glob(f"*{role}*")
        return "".join(file.read_text() for file in files)

    def resumptions(self) -> int:
        """Attempts that have followed a lost one, as far as the logs tell by now."""
        return self.written("frontend").count("follows a lost one")

    def _has_resumed(self, times: int) -> bool:
        return self.resumptions() >= times

    def interrupted(self, ask: Callable[[], T], times: int = 1) -> T:
        """What `ask` returns, which kills workers in mid-stream. It is called again where an answer
        was at its end before its worker: whoever reads it may have stood still.
        """
        for _ in range(5):
            wanted = self.resumptions() + times
            answer = ask()
            with contextlib.suppress(AssertionError):
                wait_for(partial(self._has_resumed, wanted), "the logs' word", 5.0)
                return answer
        raise AssertionError("no death was in mid-stream")

    def processes(self, role: str) -> list[psutil.Process]:
        """The living processes of one role, by their command line."""
        assert self.process
        found: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if child.status() != psutil.STATUS_ZOMBIE and role in child.cmdline():
                        found.append(child)
        self.family.extend(found)
        return found

    def workers(self) -> list[psutil.Process]:
        return self.processes("worker")

    def loaded(self) -> list[dict[str, Any]]:
        """What `/api/ps` lists, as soon as there is a scheduler that knows."""

        def listed() -> dict[str, Any] | None:
            answer = httpx.get(f"{self.url}/api/ps", timeout=PATIENCE)
            return None if answer.status_code == 503 else answer.json()

        return wait_for(listed, "a list of the loaded models")["models"]

    def known(self) -> ProcessList:
        """Every frontend and worker as the scheduler has them, and how many requests wait."""

        async def ask_scheduler() -> ProcessList:
            questions = Questions(StateDirectory(self.state).control, "the scheduler")
            try:
                return await questions.ask(ListProcesses, PATIENCE)
            finally:
                questions.close()

        return asyncio.run(ask_scheduler())

    def entries(self) -> list[ProcessEntry]:
        """The frontends and workers of `known`."""
        return self.known().processes

    def worker_with_model(self) -> psutil.Process:
        """The one worker that holds a model: the one that has its file mapped. Those that count
        devices, or measure a model, have llama.cpp and no file.
        """

        def holder() -> psutil.Process | None:
            for worker in self.workers():
                with contextlib.suppress(psutil.Error, OSError):
                    maps = Path(f"/proc/{worker.pid}/maps").read_text()
                    if ".gguf" in maps or "/sha256-" in maps:
                        return worker
            return None

        return wait_for(holder, "a worker that holds a model")

    def stop(self) -> int:
        """Ends the server and checks that nothing of it is left."""
        assert self.process
        with contextlib.suppress(psutil.NoSuchProcess):
            self.family = psutil.Process(self.process.pid).children(recursive=True)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(PATIENCE)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            if self.process.stdout:
                self.process.stdout.close()
        _, alive = psutil.wait_procs(self.family, timeout=PATIENCE)
        assert not alive, f"left behind: {alive}"
        return status


ServerMaker = Callable[..., Server]


@contextlib.contextmanager
def servers() -> Iterator[ServerMaker]:
    """Makes servers, and ends them all with their directories."""
    # A short path: that of a Unix socket ends at 107 bytes, and pytest's own are longer.
    root = Path(tempfile.mkdtemp(prefix="pronk-", dir="/tmp"))
    made: list[Server] = []

    def make(*, start: bool = True, **settings: str) -> Server:
        server = Server(root / str(len(made)), **settings)
        server.models.mkdir(parents=True)
        made.append(server)
        if start:
            server.start()
        return server

    try:
        yield make
    finally:
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, root, ignore_errors=True)
            for server in made:
                if server.process:
                    stack.callback(server.stop)


def ndjson(text: str) -> list[dict[str, Any]]:
    """The objects of a streamed answer, each on a line of its own."""
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]
