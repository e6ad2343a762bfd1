"""`pronk demo`: one question, one answer, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.server import PATIENCE, wait_for

Demo = subprocess.Popen[str]


@pytest.fixture
def demo() -> Iterator[Demo]:
    """A demo in a session of its own, as at a terminal."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pronk.frontend.cli", "demo", "Why is the sky blue?"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def family(demo: Demo) -> list[psutil.Process]:
    """Every process of the demo's server, once all are there."""

    def complete() -> list[psutil.Process]:
        children = psutil.Process(demo.pid).children(recursive=True)
        with contextlib.suppress(psutil.Error):
            if any("pronk.frontend" in child.cmdline() for child in children):
                return children
        return []

    return wait_for(complete, "the demo's processes")


def test_it_prints_the_answer_and_ends(demo: Demo) -> None:
    processes = family(demo)
    answer, told = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 0
    assert "blue" in answer.lower()
    assert "ready" in told
    assert not psutil.wait_procs(processes, timeout=PATIENCE)[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_leaves_nothing_however_it_is_ended(demo: Demo, number: signal.Signals) -> None:
    processes = family(demo)
    directory = Path(processes[0].environ()["PRONK_STATE"]).parent
    if number == signal.SIGINT:
        os.killpg(demo.pid, number)  # Ctrl-C goes to the server, too
    else:
        demo.send_signal(number)
    demo.communicate(timeout=PATIENCE)
    assert demo.returncode in (128 + number, -number)
    assert not psutil.wait_procs(processes, timeout=PATIENCE)[1]
    if number == signal.SIGKILL:
        shutil.rmtree(directory)  # nobody was left to do it
    assert not directory.exists()
