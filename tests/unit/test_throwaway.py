"""Processes that look at a file from anybody: what they hold, and what becomes of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from pronk.protocol.errors import Code, PronkError
from pronk.workers.store.creating.quantization import quantize
from pronk.workers.store.looking.inspection import inspect
from pronk.workers.store.looking.throwaway import MAX_LINE, Died, run

PATIENCE = 60.0
PYTHON = sys.executable

Play = Callable[[str], None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Has this script run in the program's place, as whatever a file may have made of it."""

    def start(script: str) -> None:
        program = tmp_path / "program"
        program.write_text(f"#!{PYTHON}\nimport json, os, sys, time\n{script}\n")
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))

    return start


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "file").write_bytes(b"the file")
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


async def ran(file: int, *, seconds: float = PATIENCE) -> dict[str, Any]:
    return await run("program", ["argument"], file, seconds=seconds)


async def test_it_holds_the_file_and_a_pipe_and_no_environment(
    play: Play, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRONK_SECRET", "token")
    play(
        "print(json.dumps({'environment': dict(os.environ), 'arguments': sys.argv[1:],"
        "'file': os.read(0, 99).decode(), 'place': os.getcwd()}))"
    )
    said = await ran(file)
    environment = said.pop("environment")
    environment.pop("LC_CTYPE", None)  # Python's own
    assert environment == {"PRONK_SUPERVISOR_PID": str(os.getpid())}
    assert said["file"] == "the file"
    assert said["place"] == "/"
    assert said["arguments"][:2] == ["-I", "-m"]
    assert said["arguments"][3:] == ["argument"]


@pytest.mark.parametrize(
    "script",
    [
        "sys.exit(0)",
        "print('{}'); sys.exit(3)",
        "os.kill(os.getpid(), 11)",
        "print('{}', flush=True); os.kill(os.getpid(), 9)",
        "print('nonsense')",
        "print('[1]')",
        "print('{' * 5000)",
        "print('[' * 10_000)",
        "os.write(1, b'\\xff\\xfe{}\\n')",
        f"print(' ' * {2 * MAX_LINE})",
        "while True: os.write(1, b'x' * 65536)",
    ],
)
async def test_whatever_it_does_instead_of_answering_is_one_error(
    play: Play, file: int, script: str
) -> None:
    play(script)
    with pytest.raises(Died):
        await ran(file)


GOOD = (
    "{'kind': 'model', 'architecture': 'llama', 'quantization': 'F16', 'parameter_size': '8B', "
    "'full': True, 'data': 1}"
)


@pytest.mark.parametrize(
    "said",
    [
        "{'facts': {}}",
        "{'facts': [1]}",
        f"{{'facts': {GOOD} | {{'kind': 'config'}}}}",
        f"{{'facts': {GOOD} | {{'architecture': '../../etc'}}}}",
        f"{{'facts': {GOOD} | {{'architecture': 'x' * 600}}}}",
        f"{{'facts': {GOOD} | {{'quantization': 'F16\\nFROM'}}}}",
        f"{{'facts': {GOOD} | {{'parameter_size': 8}}}}",
        f"{{'facts': {GOOD} | {{'data': -1}}}}",
        f"{{'facts': {GOOD} | {{'full': 1}}}}",
        "{'refused': 7}",
        "{'refused': ''}",
        "{}",
    ],
)
async def test_what_it_takes_a_file_for_is_believed_in_its_bounds_alone(
    play: Play, tmp_path: Path, file: int, said: str
) -> None:
    play(f"print(json.dumps({said}))")
    with pytest.raises(PronkError) as caught:
        await inspect(tmp_path / "file", "file 'x'")
    assert caught.value.code is Code.INVALID_REQUEST
    assert caught.value.message.startswith("file 'x' cannot be used: it ")


async def test_what_it_gives_for_a_reason_is_short_and_plain(
    play: Play, tmp_path: Path, file: int
) -> None:
    play(f"print(json.dumps({{'facts': {GOOD}}}))")
    assert (await inspect(tmp_path / "file", "x")).parameter_size == "8B"
    play("print(json.dumps({'refused': '\\x1b[2J' + 'x' * 9999}))")
    with pytest.raises(PronkError) as caught:
        await inspect(tmp_path / "file", "x")
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 400


async def test_a_quantizer_that_dies_is_one_error(play: Play, tmp_path: Path, file: int) -> None:
    play("print(json.dumps({'size': 7}), flush=True); os.kill(os.getpid(), 11)")
    with pytest.raises(PronkError, match="the model cannot be quantized: it made the process"):
        await quantize(
            tmp_path / "file",
            tmp_path / "new",
            "Q8_0",
            require_room=lambda size: None,
            progress=lambda done: None,
        )


async def test_what_it_says_on_the_way_is_heard_in_order(play: Play, file: int) -> None:
    play("for n in range(4): print(json.dumps({'n': n}))")
    heard: list[int] = []

    async def hear(said: dict[str, Any]) -> None:
        heard.append(said["n"])

    assert await run("program", [], file, seconds=PATIENCE, heard=hear) == {"n": 3}
    assert heard == [0, 1, 2]


async def waiting(play: Play, tmp_path: Path) -> Callable[[], Awaitable[int]]:
    """Plays a program that never ends; returns what waits for its pid."""
    play(f"open({str(tmp_path / 'pid')!r}, 'x').write(str(os.getpid()) + '.')\ntime.sleep(3600)")

    async def pid() -> int:
        async with asyncio.timeout(PATIENCE):
            while True:
                if (tmp_path / "pid").exists() and (said := (tmp_path / "pid").read_text()):
                    return int(said.removesuffix("."))
                await asyncio.sleep(0.01)

    return pid


async def test_one_that_takes_too_long_is_killed(play: Play, file: int, tmp_path: Path) -> None:
    pid = await waiting(play, tmp_path)
    with pytest.raises(Died, match="too long"):
        await ran(file, seconds=1.0)
    assert not (tmp_path / "pid").exists() or not psutil.pid_exists(await pid())


async def test_one_that_nobody_waits_for_is_killed(play: Play, file: int, tmp_path: Path) -> None:
    pid = await waiting(play, tmp_path)
    task = asyncio.create_task(ran(file))
    number = await pid()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not psutil.pid_exists(number)


CONFINED = """
import json, os, resource, sys
from pathlib import Path
from pronk.workers.store.looking.confinement import confine
confine(memory=32 * 2**20, seconds=7, written=4096, keep=[int(sys.argv[1])])
limits = {name: resource.getrlimit(getattr(resource, name)) for name in
          ("RLIMIT_CPU", "RLIMIT_CORE", "RLIMIT_FSIZE")}
def too_much():
    try:
        bytearray(64 * 2**20)
    except MemoryError:
        return True
print(json.dumps({
    "limits": limits,
    "too_much": too_much(),
    "descriptors": sorted(int(fd.name) for fd in Path("/proc/self/fd").iterdir() if fd.exists()),
    "environment": dict(os.environ),
}))
"""


def test_it_gives_up_memory_time_files_descriptors_and_environment() -> None:
    secret, kept = os.open("/dev/null", os.O_RDONLY), os.open("/dev/null", os.O_RDONLY)
    try:
        done = subprocess.run(
            [sys.executable, "-c", CONFINED, str(kept)],
            env={"PRONK_TOKEN": "secret"},
            pass_fds=(secret, kept),
            capture_output=True,
            check=True,
        )
    finally:
        os.close(secret)
        os.close(kept)
    said = json.loads(done.stdout)
    assert said["limits"] == {
        "RLIMIT_CPU": [7, 7],
        "RLIMIT_CORE": [0, 0],
        "RLIMIT_FSIZE": [4096, 4096],
    }
    assert said["too_much"]
    assert said["descriptors"] == [0, 1, 2, kept]
    assert said["environment"] == {}


ORPHAN = """
import asyncio, os, sys
from pronk.protocol.errors import Code, PronkError
from pronk.workers.store.looking.inspection import inspect
from pronk.workers.store.creating.quantization import quantize
from pronk.workers.store.looking.throwaway import run
asyncio.run(run("program", [], 0, seconds=3600))
"""


def wait_for_child(process: psutil.Process) -> psutil.Process:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for child in process.children():
            if "program" in " ".join(child.cmdline()):
                return child
        time.sleep(0.01)
    raise AssertionError("it started no process")


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(
        f"#!{sys.executable}\nimport os, time\n"
        "from pronk.workers.store.looking.confinement import confine\n"
        "confine(memory=2**20, seconds=60, written=0)\n"
        "print('{\"pid\": %d}' % os.getpid(), flush=True)\ntime.sleep(3600)\n"
    )
    program.chmod(0o700)
    script = ORPHAN.replace("asyncio.run(", f"sys.executable = {str(program)!r}\nasyncio.run(")
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.DEVNULL)
    try:
        child = wait_for_child(psutil.Process(parent.pid))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        psutil.wait_procs([child], timeout=PATIENCE)
        assert not child.is_running()
    finally:
        parent.kill()
        parent.wait()


def test_it_works_on_the_workers_event_loop_too(play: Play, file: int) -> None:
    play("print(json.dumps({'file': os.read(0, 99).decode()}))")
    assert uvloop.run(ran(file)) == {"file": "the file"}
