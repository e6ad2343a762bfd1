"""`pronk serve`: one line when it is ready, one line when it cannot be, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from pronk.protocol.errors import PronkError
from pronk.protocol.state import StateDirectory
from support.server import PATIENCE, Server, ServerMaker, servers, wait_for

LEAN = {"PRONK_WORKERS": "1", "PRONK_DEVICES": '[{"name": "sim0", "memory": "1GiB"}]'}
"""As few processes as can be, for what is not about workers: none of them counts devices."""

ROLES = {
    "pronk.frontend": 1,
    "pronk.scheduler": 1,
    "store": 1,
    "worker": 2,
    "pronk.frontend.cli.listener": 1,
}


def running(server: Server) -> list[psutil.Process]:
    """Every living process of this server, whoever its parent is by now."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if (
                process.environ().get("PRONK_STATE") == str(server.state)
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
    return found


def refusal(server: Server) -> str:
    """The one line of a server that does not start."""
    done = subprocess.run(
        [sys.executable, "-m", "pronk.frontend.cli", "serve"],
        env=server.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout, len(lines)) == (1, "", 1), done
    return lines[0]


@pytest.fixture(scope="module")
def pair() -> Iterator[Server]:
    """A server of two frontends."""
    with servers() as make:
        yield make(PRONK_FRONTENDS="2", **LEAN)


class TestReady:
    """A server that runs."""

    def test_the_line_has_the_address_and_a_command_that_works(self, server: Server) -> None:
        match = re.fullmatch(r"Pronk is ready at (\S+) - try: (curl .*)", server.ready_line)
        assert match
        assert match[1] == server.url
        done = subprocess.run(
            shlex.split(match[2]), capture_output=True, text=True, timeout=PATIENCE, check=True
        )
        assert json.loads(done.stdout.splitlines()[-1])["done"] is True

    def test_each_process_shows_its_role(self, server: Server) -> None:
        def counts() -> dict[str, int]:
            return {role: len(server.processes(role)) for role in ROLES}

        wait_for(lambda: counts() == ROLES, f"{ROLES}")

    def test_the_state_directory_is_private(self, server: Server) -> None:
        assert server.state.stat().st_mode & 0o777 == 0o700

    def test_a_second_server_on_the_same_state_is_refused(
        self, server: Server, make_server: ServerMaker
    ) -> None:
        second = make_server(start=False, PRONK_STATE=str(server.state))
        assert "another server runs on this directory" in refusal(second)
        assert httpx.get(server.url, timeout=PATIENCE).status_code == 200

    def test_an_occupied_port_is_refused(self, server: Server, make_server: ServerMaker) -> None:
        second = make_server(start=False, PRONK_HOST=f"127.0.0.1:{server.port}")
        assert f"PRONK_HOST=127.0.0.1:{server.port}" in refusal(second)
        assert not running(second)

    @pytest.mark.xdist_group("pair")
    def test_a_killed_process_is_reported_and_replaced(self, pair: Server) -> None:
        [store] = pair.processes("store")
        store.kill()
        assert f"store (pid {store.pid}) died" in pair.read_until("died")
        wait_for(
            lambda: [p.pid for p in pair.processes("store")] not in ([], [store.pid]),
            "another store",
        )

    @pytest.mark.xdist_group("pair")
    def test_several_frontends_answer_on_one_port(self, pair: Server) -> None:
        first, second = wait_for(
            lambda: len(found := pair.processes("pronk.frontend")) == 2 and found,
            "two frontends",
        )
        for process in (first, second):
            process.suspend()  # the other one has to answer
            wait_for(lambda: answers(pair), "an answer from one of two frontends")
            process.resume()

    def test_an_ipv6_address_is_served(self, make_server: ServerMaker) -> None:
        try:
            with socket.create_server(("::1", 0), family=socket.AF_INET6) as probe:
                port = probe.getsockname()[1]
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")
        server = make_server(PRONK_HOST=f"[::1]:{port}", PRONK_FRONTENDS="2", **LEAN)
        assert f"http://[::1]:{port} " in server.ready_line
        assert httpx.get(f"http://[::1]:{port}", timeout=PATIENCE).status_code == 200

    def test_port_0_is_any_free_one(self, make_server: ServerMaker) -> None:
        server = make_server(PRONK_HOST="127.0.0.1:0", **LEAN)
        url = re.findall(r"http://127\.0\.0\.1:[1-9]\d*", server.ready_line)[0]
        assert httpx.get(url, timeout=PATIENCE).status_code == 200


def answers(server: Server) -> bool:
    # A new connection each time; the one that fell to the suspended frontend is given up.
    try:
        return httpx.get(server.url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


class TestConsole:
    """The ready line arrives whatever the standard output is."""

    def start(self, server: Server, stdout: int) -> subprocess.Popen[bytes]:
        server.process = subprocess.Popen(  # type: ignore[assignment]
            [sys.executable, "-m", "pronk.frontend.cli", "serve"],
            env=server.environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return server.process  # type: ignore[return-value]

    def test_a_file(self, make_server: ServerMaker, tmp_path: Path) -> None:
        server = make_server(start=False, **LEAN)
        output = tmp_path / "out"
        with output.open("wb") as file:
            self.start(server, file.fileno())
        wait_for(lambda: "ready at " in output.read_text(), "the ready line in the file")

    def test_a_socket(self, make_server: ServerMaker) -> None:
        server = make_server(start=False, **LEAN)
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self.start(server, theirs.fileno())
            ours.settimeout(PATIENCE)
            assert ours.recv(4096).startswith(b"Pronk is ready at ")

    def test_a_terminal_whose_hangup_ends_the_server(self, make_server: ServerMaker) -> None:
        server = make_server(start=False, **LEAN)
        ours, theirs = os.openpty()
        process = self.start(server, theirs)
        os.close(theirs)
        assert os.read(ours, 4096).startswith(b"Pronk is ready at ")
        processes = running(server)
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.wait(PATIENCE) == 0
        assert not psutil.wait_procs(processes, timeout=PATIENCE)[1]
        assert not running(server)

    def test_a_pipe_that_nobody_reads_any_more(self, make_server: ServerMaker) -> None:
        server = make_server(start=False, **LEAN)
        reading, writing = os.pipe()
        os.close(reading)
        process = self.start(server, writing)
        os.close(writing)
        wait_for(lambda: answers(server), "an answer")
        assert process.poll() is None


class TestFile:
    """PRONK_CONFIG reaches every process, and each finds the same file."""

    def test_a_relative_path_is_told_in_full(
        self, make_server: ServerMaker, tmp_path: Path
    ) -> None:
        file = tmp_path / "pronk.toml"
        file.write_text('demo_model = "off"\n[model.demo]\nmax_replicas = 1\n')
        server = make_server(PRONK_CONFIG=os.path.relpath(file), **LEAN)
        roles = ["pronk.scheduler", "pronk.workers", "pronk.frontend"]
        for process in [process for role in roles for process in server.processes(role)]:
            told = Path(process.environ()["PRONK_CONFIG"])
            assert told.is_absolute()
            assert told.samefile(file)
        assert httpx.get(f"{server.url}/api/tags").json() == {"models": []}

    def test_what_is_wrong_in_it_is_told_with_its_place(
        self, make_server: ServerMaker, tmp_path: Path
    ) -> None:
        file = tmp_path / "pronk.toml"
        file.write_text("[model.demo]\nmax_replica = 1\n")
        server = make_server(start=False, PRONK_CONFIG=str(file))
        line = refusal(server)
        assert f"{file}: model.demo.max_replica: there is no such setting" in line
        assert not running(server)


class TestRefusal:
    """What keeps a server from running is told in one line, and nothing runs then."""

    @pytest.mark.parametrize(
        ("variable", "value"),
        [
            ("PRONK_WORKERS", "0"),
            ("PRONK_HOST", "127.0.0.1:99999"),
            ("PRONK_KEEP_ALIVE", "soon"),
            ("PRONK_CONFIG", "/nowhere/pronk.toml"),
        ],
    )
    def test_a_bad_setting(self, make_server: ServerMaker, variable: str, value: str) -> None:
        server = make_server(start=False, **{variable: value})
        line = refusal(server)
        assert variable in line
        assert value in line
        assert not running(server)

    @pytest.mark.parametrize("variable", ["PRONK_STATE", "PRONK_MODELS"])
    def test_a_directory_that_cannot_be(
        self, make_server: ServerMaker, tmp_path: Path, variable: str
    ) -> None:
        (tmp_path / "file").touch()
        server = make_server(start=False, **{variable: str(tmp_path / "file" / "below")})
        assert variable in refusal(server)

    def test_a_process_that_cannot_start(self, make_server: ServerMaker) -> None:
        server = make_server(**LEAN)
        state = StateDirectory(server.state)

        def stolen() -> int | None:
            try:
                return state.lock("scheduler")
            except PronkError:
                return None

        [scheduler] = server.processes("pronk.scheduler")
        children = running(server)
        assert server.process
        server.process.send_signal(signal.SIGSTOP)  # or the next scheduler may be faster than us
        scheduler.kill()
        second = make_server(start=False, PRONK_STATE=str(server.state))
        assert "another server runs" in refusal(second), "though its scheduler is not there"
        lock = wait_for(stolen, "the lock of the killed scheduler")
        server.process.send_signal(signal.SIGCONT)
        try:
            line = server.read_until("cannot start")
            assert "scheduler cannot start, so the server ends" in line
            assert "another server runs on this directory" in line
            assert server.process.wait(PATIENCE) == 1
        finally:
            os.close(lock)
        _, alive = psutil.wait_procs(children, timeout=PATIENCE)
        assert not alive
        assert not running(server)


class TestEnd:
    """However it ends, everything ends."""

    @pytest.fixture
    def family(self, make_server: ServerMaker) -> Iterator[tuple[Server, list[psutil.Process]]]:
        # Nobody counts devices: a worker that has done so is exchanged, whoever looks at it.
        server = make_server(PRONK_ECHO_MODEL="on", **LEAN | {"PRONK_WORKERS": "2"})
        complete = 1 + sum(ROLES.values())
        wait_for(lambda: len(running(server)) >= complete, "all processes")
        family = running(server)
        yield server, family
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.resume()

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_ends_streams_properly_and_then_everything_with_status_0(
        self, family: tuple[Server, list[psutil.Process]], number: signal.Signals
    ) -> None:
        server, processes = family
        assert server.process
        endless = {"model": "echo:100", "prompt": "go", "options": {"num_predict": 10**9}}
        with httpx.stream(
            "POST", f"{server.url}/api/generate", json=endless, timeout=PATIENCE
        ) as answer:
            lines = answer.iter_lines()
            seen = [json.loads(next(lines))]
            server.process.send_signal(number)
            seen += map(json.loads, lines)  # raises if the answer is cut off instead of ended
        assert "shutting down" in seen[-1]["error"]
        assert all(not line["done"] for line in seen[:-1])
        assert server.process.wait(PATIENCE) == 0
        assert not psutil.wait_procs(processes, timeout=PATIENCE)[1]
        assert not running(server)

    def test_processes_that_hang_are_ended_all_the_same(
        self, family: tuple[Server, list[psutil.Process]]
    ) -> None:
        server, processes = family
        assert server.process
        for role in ("pronk.frontend", "worker", "store", "pronk.scheduler"):
            for process in server.processes(role):
                process.suspend()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
        assert not psutil.wait_procs(processes, timeout=PATIENCE)[1]

    def test_nothing_survives_the_death_of_supervisord(
        self, family: tuple[Server, list[psutil.Process]]
    ) -> None:
        server, processes = family
        assert server.process
        server.process.kill()
        assert not psutil.wait_procs(processes, timeout=PATIENCE)[1]
        assert not running(server)

    def test_nothing_survives_the_death_of_supervisord_at_the_start(
        self, make_server: ServerMaker
    ) -> None:
        server = make_server(start=False)
        process = subprocess.Popen(
            [sys.executable, "-m", "pronk.frontend.cli", "serve"],
            env=server.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        # The processes just begin: they have not told the kernel yet whose children they are.
        wait_for(lambda: len(running(server)) > 3, "the first processes")
        process.kill()
        process.wait()
        wait_for(lambda: not running(server), "the end of all processes")
