"""A running server that knows a registry's password, and which of its processes have it."""

from __future__ import annotations

import base64
import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.server import PATIENCE, Server, servers, wait_for

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

PASSWORD = "correct-horse-battery-staple"
OTHERS = ("worker", "pronk.scheduler", "pronk.frontend", "pronk.frontend.cli.listener")
BASIC = base64.b64encode(f"ann:{PASSWORD}".encode()).decode()


class Closed(http.server.BaseHTTPRequestHandler):
    """A registry that shows nothing to nobody."""

    shown: set[str | None]

    def do_GET(self) -> None:
        shown = self.headers.get("Authorization")
        self.shown.add(shown)
        self.send_response(404 if shown else 401)
        self.send_header("WWW-Authenticate", 'Basic realm="models"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def closed() -> Iterator[http.server.ThreadingHTTPServer]:
    Closed.shown = set()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Closed) as registry:
        thread = threading.Thread(target=registry.serve_forever)
        thread.start()
        yield registry
        registry.shutdown()
        thread.join()


@pytest.fixture
def server(closed: http.server.ThreadingHTTPServer, tmp_path: Path) -> Iterator[Server]:
    config = tmp_path / "pronk.toml"
    config.write_text(
        f'num_batch = 64\n[registry."127.0.0.1:{closed.server_port}"]\nusername = "ann"\n'
        f'password = "{PASSWORD}"\ninsecure = true\n'
    )
    config.chmod(0o644)
    with servers() as make:
        server = make(start=False, PRONK_CONFIG=str(config))
        yield server


def has(pid: int, secret: bytes) -> bool:
    """Whether a process has these bytes in its environment or in memory that it can write to."""
    if secret in Path(f"/proc/{pid}/environ").read_bytes():
        return True
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights = line.split()[:2]
            if not rights.startswith("rw"):
                continue
            start, end = (int(number, 16) for number in place.split("-"))
            try:
                memory.seek(start)
                if secret in memory.read(end - start):
                    return True
            except OSError:
                continue  # it is gone, or belongs to a device
    return False


def test_the_store_alone_has_the_password(
    server: Server, closed: http.server.ThreadingHTTPServer
) -> None:
    server.start()
    asked = httpx.post(
        f"{server.url}/api/pull",
        json={"model": f"127.0.0.1:{closed.server_port}/a/b", "insecure": True, "stream": False},
        timeout=PATIENCE,
    )
    assert asked.status_code == 404
    assert f"Basic {BASIC}" in Closed.shown
    answer = httpx.post(
        f"{server.url}/api/generate",
        json={"model": "demo", "prompt": "Hi", "stream": False},
        timeout=PATIENCE,
    )
    assert answer.status_code == 200
    (store,) = wait_for(lambda: server.processes("store"), "the store")
    assert has(store.pid, PASSWORD.encode())
    assert server.process
    others = [
        server.process.pid,
        *(
            process.pid
            for role in (
                "worker",
                "pronk.scheduler",
                "pronk.frontend",
                "pronk.frontend.cli.listener",
            )
            for process in server.processes(role)
        ),
    ]
    assert len(others) >= 6
    for pid in others:
        for secret in (PASSWORD, BASIC):
            assert not has(pid, secret.encode()), Path(f"/proc/{pid}/cmdline").read_bytes()
    assert any("chmod 600" in line for line in server.console)
    assert "chmod 600" in (server.state / "logs" / "store.log").read_text()
    assert PASSWORD not in server.logs()
