"""Models come and go, clients come and go, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from pronk.protocol.messages.control import ProcessEntry
from pronk.protocol.messages.fleet import Role
from support.library import add_model
from support.models import write_reciting_model
from support.server import PATIENCE, Server, ServerMaker, ndjson, servers, wait_for

GREEDY = {"temperature": 0}
ENDLESS = {
    "model": "endless",
    "prompt": "go",
    "options": {"temperature": 0, "num_ctx": 32768},
}


@contextlib.contextmanager
def endless_servers() -> Iterator[ServerMaker]:
    """Servers whose library has `endless`, which counts until its 32,768 tokens are full ten times.

    Their models have one slot, and `endless` one replica, so that a second request has to wait.
    """
    one_replica = '{"endless": {"max_replicas": 1}}'

    def make(**settings: str) -> Server:
        alone = {"PRONK_NUM_PARALLEL": "1", "PRONK_MODEL_LIMITS": one_replica}
        server = maker(start=False, **alone, **settings)
        weights = server.root / "endless.gguf"
        write_reciting_model(weights, ["01234567890"], context=32768)
        add_model(server.models, "endless", weights)
        server.start()
        return server

    with servers() as maker:
        yield make


shares, narrow = pytest.mark.xdist_group("endless"), pytest.mark.xdist_group("one worker")


@pytest.fixture(scope="module")
def one_worker() -> Iterator[Server]:
    """One with a single worker, which drops readers that are a little slow."""
    with endless_servers() as make:
        yield make(PRONK_WORKERS="1", PRONK_MAX_STREAM_BUFFER="10KiB")


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    """One for all tests that leave it idle; one request may wait there, and models stay."""
    with endless_servers() as make:
        yield make(PRONK_MAX_QUEUE="1", PRONK_KEEP_ALIVE="-1")


@pytest.fixture
def endless(shared: Server) -> Server:
    """`shared` with all its workers, and nothing under way."""
    wait_for(lambda: len(shared.workers()) == len(workers(shared)) == 2, "two workers")
    # Of a stream that ended, the client may hear before the scheduler does.
    wait_for(lambda: not any(worker.requests for worker in workers(shared)), "no requests")
    return shared


def workers(server: Server) -> list[ProcessEntry]:
    """The workers as the scheduler has them."""
    return [entry for entry in server.entries() if entry.role is Role.WORKER]


def holder(server: Server, model: str) -> ProcessEntry:
    """The one worker that holds a model."""
    (one,) = [worker for worker in workers(server) if worker.model == f"{model}:latest"]
    return one


def load(server: Server, **request: Any) -> None:
    """Returns when the model of a request can take it as it is."""
    request = {"model": request["model"], "options": {"num_ctx": request["options"]["num_ctx"]}}
    httpx.post(f"{server.url}/api/generate", json=request, timeout=PATIENCE).raise_for_status()


def send(server: Server, request: dict[str, Any]) -> socket.socket:
    """Sends a request."""
    body = json.dumps(request).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
    head = f"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def begin(server: Server, request: dict[str, Any]) -> socket.socket:
    """Sends a request and returns when the first line of the answer is there."""
    connection = send(server, request)
    received = b""
    while b'"done":false' not in received:
        data = connection.recv(65536)
        assert data, received
        received += data
    return connection


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def is_idle(worker: ProcessEntry) -> bool:
    process = psutil.Process(worker.pid)
    before = cpu_seconds(process)
    time.sleep(0.3)
    return cpu_seconds(process) - before < 0.1


def assert_stops(server: Server, worker: ProcessEntry) -> None:
    """The worker lives on, and has nothing to do."""
    wait_for(lambda: holder(server, "endless").requests == 0, "a worker without requests")
    wait_for(lambda: is_idle(worker), "the end of the generation")
    assert holder(server, "endless").pid == worker.pid


@shares
def test_keep_alive_ends_the_process_that_held_the_model(endless: Server):
    request = {"model": "demo", "prompt": "hi", "stream": False}
    httpx.post(f"{endless.url}/api/generate", json=request, timeout=PATIENCE)
    worker = psutil.Process(holder(endless, "demo").pid)
    (entry,) = [entry for entry in endless.loaded() if entry["name"] == "demo:latest"]
    assert entry["expires_at"] > "2100"
    httpx.post(
        f"{endless.url}/api/generate", json=request | {"keep_alive": "200ms"}, timeout=PATIENCE
    )
    wait_for(lambda: not worker.is_running(), "the end of the worker")
    wait_for(lambda: "demo:latest" not in names(endless), "a list without it")
    wait_for(lambda: len(endless.workers()) == 2, "a blank worker in its place")


def names(server: Server) -> list[str]:
    """Of the models that are loaded."""
    return [entry["name"] for entry in server.loaded()]


@narrow
def test_more_models_than_workers_take_turns(one_worker: Server):
    for _ in range(2):
        for model in ("demo", "endless"):
            request = {"model": model, "prompt": "hi", "stream": False}
            request["options"] = {"num_predict": 3}
            answer = httpx.post(f"{one_worker.url}/api/generate", json=request, timeout=PATIENCE)
            assert answer.json()["eval_count"] <= 3
            assert [entry["name"] for entry in one_worker.loaded()] == [f"{model}:latest"]


@shares
def test_two_models_are_loaded_side_by_side(endless: Server):
    for model in ("demo", "endless"):
        httpx.post(f"{endless.url}/api/generate", json={"model": model}, timeout=PATIENCE)
    assert sorted(names(endless)) == ["demo:latest", "endless:latest"]


@shares
def test_a_client_that_leaves_stops_its_generation(endless: Server):
    connection = begin(endless, ENDLESS)
    worker = holder(endless, "endless")
    assert worker.requests == 1
    connection.close()
    assert_stops(endless, worker)


@shares
def test_a_client_that_leaves_without_streaming_stops_its_generation(endless: Server):
    # Loaded before: whoever leaves while it is loaded for so much context ends that instead.
    load(endless, **ENDLESS)
    connection = send(endless, ENDLESS | {"stream": False})
    worker = holder(endless, "endless")
    wait_for(lambda: holder(endless, "endless").requests == 1, "the generation")
    connection.close()
    assert_stops(endless, worker)


@shares
def test_a_client_that_leaves_the_queue_is_not_served(endless: Server):
    running = begin(endless, ENDLESS)
    worker = holder(endless, "endless")
    waiting = send(endless, ENDLESS | {"stream": False})
    wait_for(lambda: endless.known().waiting == 1, "a request that waits")
    waiting.close()
    wait_for(lambda: endless.known().waiting == 0, "an empty queue")
    running.close()
    assert_stops(endless, worker)


@narrow
def test_a_slow_client_is_dropped_and_does_not_hold_its_slot(one_worker: Server):
    slow = begin(one_worker, ENDLESS)  # and reads no further
    answer = httpx.post(
        f"{one_worker.url}/api/generate",
        json=ENDLESS | {"options": {"num_predict": 1}, "stream": False},
        timeout=PATIENCE,
    )
    assert answer.json()["eval_count"] == 1
    slow.settimeout(PATIENCE)
    received = b""
    with contextlib.suppress(ConnectionError):
        while data := slow.recv(1 << 20):
            received = (received + data)[-1000:]
    assert b'"done":true' not in received
    assert not received.endswith(b"0\r\n\r\n")


def test_many_clients_at_once_all_get_their_own_answer(server: Server):
    questions = ["Why is the sky blue?", "hi", "What is Pronk?", "Count to twenty."] * 3

    def ask(question: str) -> str:
        request = {"model": "demo", "prompt": question, "options": GREEDY}
        answer = httpx.post(f"{server.url}/api/generate", json=request, timeout=PATIENCE)
        lines = ndjson(answer.text)
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
        return "".join(line["response"] for line in lines)

    with ThreadPoolExecutor(len(questions)) as pool:
        answers = list(pool.map(ask, questions))
    assert answers[:4] == answers[4:8] == answers[8:]
    assert len(set(answers)) == 4


@shares
def test_a_full_queue_is_503_with_retry_after_in_streaming_mode_too(endless: Server):
    running = begin(endless, ENDLESS)
    with ThreadPoolExecutor(3) as pool:

        def ask(number: int) -> httpx.Response:
            request = ENDLESS | {"stream": number > 0, "options": {"num_predict": 1}}
            return httpx.post(f"{endless.url}/api/generate", json=request, timeout=PATIENCE)

        answers = [pool.submit(ask, number) for number in range(3)]
        wait_for(lambda: sum(answer.done() for answer in answers) == 2, "two refusals")
        running.close()
        results = [answer.result() for answer in answers]
    refused = [answer for answer in results if answer.status_code == 503]
    assert len(refused) == 2
    for answer in refused:
        assert float(answer.headers["retry-after"]) > 0
        assert "busy" in answer.json()["error"]
