"""Any process may be killed at any instant: what its clients see, and that all is well after it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from support.library import add_model
from support.models import write_reciting_model
from support.server import PATIENCE, Server, servers, wait_for

# One server for all of them: each waits until every process of it is in its place again.
pytestmark = pytest.mark.xdist_group("every process")

LONG: dict[str, Any] = {
    "model": "endless",
    "prompt": "go",
    "options": {"temperature": 0, "num_ctx": 32768},
}
SHORT = {"model": "endless", "prompt": "go", "stream": False, "options": {"num_predict": 2}}


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    """A server whose model `endless` answers `LONG` with as many tokens as are asked for."""
    with servers() as make:
        one_replica = '{"endless": {"max_replicas": 1}}'
        server = make(start=False, PRONK_FRONTENDS="2", PRONK_MODEL_LIMITS=one_replica)
        weights = server.root / "endless.gguf"
        write_reciting_model(weights, ["01234567890"], context=32768)
        add_model(server.models, "endless", weights)
        server.start()
        yield server


@pytest.fixture
def victim(shared: Server) -> Server:
    wait_for(lambda: len(shared.entries()) == 4, "two frontends and two workers")
    return shared


class Reader:
    """Reads one streamed answer in the background."""

    def __init__(self, server: Server, pool: ThreadPoolExecutor, tokens: int = 4000) -> None:
        self.lines: list[dict] = []
        self.first = threading.Event()
        self._server = server
        self._question = LONG | {"options": LONG["options"] | {"num_predict": tokens}}
        self.end: Future[None] = pool.submit(self._read)

    def _read(self) -> None:
        url = f"{self._server.url}/api/generate"
        with httpx.stream("POST", url, json=self._question, timeout=PATIENCE) as answer:
            self._port = answer.extensions["network_stream"].get_extra_info("client_addr")[1]
            for line in answer.iter_lines():
                self.lines.append(json.loads(line))
                self.first.set()

    def is_served_by(self, frontend: psutil.Process) -> bool:
        """Whether this frontend has the other end of the connection."""
        remote = [connection.raddr for connection in frontend.net_connections("tcp")]
        return any(address and address.port == self._port for address in remote)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def assert_serves(server: Server) -> None:
    answer = httpx.post(f"{server.url}/api/generate", json=SHORT, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    assert answer.json()["eval_count"] == 2


def test_a_request_that_waits_behind_a_killed_worker_is_served_by_the_next(
    victim: Server, pool: ThreadPoolExecutor
):
    reader = Reader(victim, pool)
    assert reader.first.wait(PATIENCE)
    url = f"{victim.url}/api/generate"
    waiting = pool.submit(httpx.post, url, json=SHORT, timeout=PATIENCE)
    victim.worker_with_model().kill()
    assert waiting.result(PATIENCE).json()["eval_count"] == 2


def test_streams_go_on_while_the_scheduler_is_dead_and_new_requests_wait_for_the_next(
    victim: Server, pool: ThreadPoolExecutor
):
    reader = Reader(victim, pool)
    assert reader.first.wait(PATIENCE)
    (scheduler,) = victim.processes("pronk.scheduler")
    scheduler.kill()
    url = f"{victim.url}/api/generate"
    waiting = pool.submit(httpx.post, url, json=SHORT, timeout=PATIENCE)
    reader.end.result(PATIENCE)
    text = "".join(line["response"] for line in reader.lines)
    assert text == "0123456789" * 400
    assert reader.lines[-1]["eval_count"] == 4000
    assert waiting.result(PATIENCE).json()["eval_count"] == 2
    wait_for(lambda: victim.loaded(), "the new scheduler's list")
    assert len(victim.loaded()) == 1


def test_the_library_answers_while_the_scheduler_is_dead(victim: Server):
    (scheduler,) = victim.processes("pronk.scheduler")
    scheduler.suspend()
    try:
        assert httpx.get(f"{victim.url}/api/tags", timeout=PATIENCE).json()["models"]
        show = httpx.post(f"{victim.url}/api/show", json={"model": "demo"}, timeout=PATIENCE)
        assert show.status_code == 200
        running = httpx.get(f"{victim.url}/api/ps", timeout=PATIENCE)
        assert running.status_code == 503
        assert float(running.headers["retry-after"]) > 0
    finally:
        scheduler.kill()
    assert_serves(victim)


def test_a_killed_store_is_replaced_without_anyone_noticing(victim: Server):
    for _ in range(3):
        (store,) = wait_for(lambda: victim.processes("store"), "a store")
        store.kill()
        assert httpx.get(f"{victim.url}/api/tags", timeout=PATIENCE).json()["models"]
    assert_serves(victim)


def test_a_killed_frontend_breaks_its_own_connections_only(
    victim: Server, pool: ThreadPoolExecutor
):
    reader = Reader(victim, pool, 1_000_000)
    assert reader.first.wait(PATIENCE)
    worker = victim.worker_with_model()
    frontends = victim.processes("pronk.frontend")
    (owner,) = [frontend for frontend in frontends if reader.is_served_by(frontend)]
    owner.kill()
    with pytest.raises(httpx.HTTPError):
        reader.end.result(PATIENCE)
    assert_serves(victim)
    assert worker.is_running()
    wait_for(lambda: len(victim.processes("pronk.frontend")) == 2, "a frontend in its place")


def test_a_blank_worker_killed_again_and_again_is_always_replaced(victim: Server):
    for _ in range(5):
        for worker in victim.workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        wait_for(lambda: victim.workers(), "new workers")
    assert_serves(victim)
