"""The output of `pronk supervisor-config`, included by a supervisord that is not ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import psutil

from support.server import PATIENCE, ServerMaker, wait_for

HOST = """
[supervisord]
nodaemon=true
silent=true
logfile={root}/host.log
pidfile={root}/host.pid
[program:worker]
command=sleep 1000
[include]
files={root}/conf.d/*.conf
"""


def test_a_host_runs_pronk_beside_its_own_programs(make_server: ServerMaker) -> None:
    # A path that has to be quoted in every way that supervisor's parser knows.
    server = make_server(start=False, PRONK_FRONTENDS="2")
    root = server.root
    server.environment["PRONK_STATE"] = str(root / "50% of it's")
    done = subprocess.run(
        [sys.executable, "-m", "pronk.frontend.cli", "supervisor-config"],
        env=server.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    (root / "conf.d").mkdir()
    (root / "conf.d" / "pronk.conf").write_text(done.stdout)
    (root / "host.conf").write_text(HOST.format(root=root))
    host = subprocess.Popen(
        [Path(sys.executable).with_name("supervisord"), "-c", root / "host.conf"],
        env={"PATH": "/usr/bin:/bin"},  # nothing of ours
        cwd="/",
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(lambda: _answers(server.url), "an answer")
        request = {"model": "demo", "prompt": "hi", "stream": False}
        answer = httpx.post(f"{server.url}/api/generate", json=request, timeout=PATIENCE)
        assert answer.json()["done_reason"] == "stop"
        children = psutil.Process(host.pid).children()
        commands = list(map(_command, children))
        assert sum("pronk.frontend" in command for command in commands) == 2
        assert "sleep 1000" in commands  # a program called `worker` is still the host's own
        host.terminate()
        host.wait(PATIENCE)
        assert not psutil.wait_procs(children, timeout=PATIENCE)[1]
    finally:
        if host.poll() is None:
            for process in [psutil.Process(host.pid), *psutil.Process(host.pid).children()]:
                process.kill()
            host.wait()


def _command(process: psutil.Process) -> str:
    """Empty for one that has ended, as a worker does that has told which devices there are."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/api/ps", timeout=PATIENCE).status_code == 200
    except httpx.HTTPError:
        return False
