"""Models come and go, clients come and go, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from support.library import add_model
from support.models import write_reciting_model
from support.server import PATIENCE, Server, ServerMaker, ndjson, wait_for

GREEDY = {"temperature": 0}
ENDLESS = {
    "model": "endless",
    "prompt": "go",
    "options": {"temperature": 0, "num_ctx": 32768},
}


@pytest.fixture
def make_endless(make_server: ServerMaker) -> ServerMaker:
    """Servers whose library has `endless`, which counts until its 32,768 tokens are full ten times.

    Their models have one slot, and `endless` one replica, so that a second request has to wait.
    """
    one_replica = '{"endless": {"max_replicas": 1}}'

    def make(**settings: str) -> Server:
        alone = {"PRONK_NUM_PARALLEL": "1", "PRONK_MODEL_LIMITS": one_replica}
        server = make_server(start=False, **alone, **settings)
        weights = server.root / "endless.gguf"
        write_reciting_model(weights, ["01234567890"], context=32768)
        add_model(server.models, "endless", weights)
        server.start()
        return server

    return make


def begin(server: Server, request: dict) -> socket.socket:
    """Sends a request and returns when the first line of the answer is there."""
    body = json.dumps(request).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
    head = f"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    received = b""
    while b'"done":false' not in received:
        data = connection.recv(65536)
        assert data, received
        received += data
    return connection


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def is_idle(process: psutil.Process) -> bool:
    before = cpu_seconds(process)
    time.sleep(0.3)
    return cpu_seconds(process) - before < 0.1


def test_keep_alive_ends_the_process_that_held_the_model(make_server: ServerMaker):
    server = make_server(PRONK_KEEP_ALIVE="-1")
    request = {"model": "demo", "prompt": "hi", "stream": False}
    httpx.post(f"{server.url}/api/generate", json=request, timeout=PATIENCE)
    worker = server.worker_with_model()
    assert server.loaded()[0]["expires_at"] > "2100"
    httpx.post(
        f"{server.url}/api/generate", json=request | {"keep_alive": "200ms"}, timeout=PATIENCE
    )
    wait_for(lambda: not worker.is_running(), "the end of the worker")
    wait_for(lambda: server.loaded() == [], "an empty list")
    wait_for(lambda: len(server.workers()) == 2, "a blank worker in its place")


def test_more_models_than_workers_take_turns(make_endless: ServerMaker):
    server = make_endless(PRONK_WORKERS="1")
    for _ in range(2):
        for model in ("demo", "endless"):
            request = {"model": model, "prompt": "hi", "stream": False}
            request["options"] = {"num_predict": 3}
            answer = httpx.post(f"{server.url}/api/generate", json=request, timeout=PATIENCE)
            assert answer.json()["eval_count"] <= 3
            assert [entry["name"] for entry in server.loaded()] == [f"{model}:latest"]


def test_two_models_are_loaded_side_by_side(make_endless: ServerMaker):
    server = make_endless()
    for model in ("demo", "endless"):
        httpx.post(f"{server.url}/api/generate", json={"model": model}, timeout=PATIENCE)
    assert {entry["name"] for entry in server.loaded()} == {"demo:latest", "endless:latest"}


def test_a_client_that_leaves_stops_its_generation(make_endless: ServerMaker):
    server = make_endless()
    begin(server, ENDLESS).close()
    worker = server.worker_with_model()
    wait_for(lambda: is_idle(worker), "the end of the generation")
    assert worker.is_running()


def test_a_client_that_leaves_without_streaming_stops_its_generation(make_endless: ServerMaker):
    server = make_endless()
    httpx.post(f"{server.url}/api/generate", json={"model": ENDLESS["model"]}, timeout=PATIENCE)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/api/generate", json=ENDLESS | {"stream": False}, timeout=1)
    worker = server.worker_with_model()
    wait_for(lambda: is_idle(worker), "the end of the generation")


def test_a_client_that_leaves_the_queue_is_not_served(make_endless: ServerMaker):
    server = make_endless()
    running = begin(server, ENDLESS)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/api/generate", json=ENDLESS | {"stream": False}, timeout=0.5)
    running.close()
    worker = server.worker_with_model()
    wait_for(lambda: is_idle(worker), "a worker without work")


def test_a_slow_client_is_dropped_and_does_not_hold_its_slot(make_endless: ServerMaker):
    server = make_endless(PRONK_MAX_STREAM_BUFFER="10KiB")
    slow = begin(server, ENDLESS)  # and reads no further
    answer = httpx.post(
        f"{server.url}/api/generate",
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


def test_a_full_queue_is_503_with_retry_after_in_streaming_mode_too(make_endless: ServerMaker):
    server = make_endless(PRONK_MAX_QUEUE="1")
    running = begin(server, ENDLESS)
    with ThreadPoolExecutor(3) as pool:

        def ask(number: int) -> httpx.Response:
            request = ENDLESS | {"stream": number > 0, "options": {"num_predict": 1}}
            return httpx.post(f"{server.url}/api/generate", json=request, timeout=PATIENCE)

        answers = [pool.submit(ask, number) for number in range(3)]
        wait_for(lambda: sum(answer.done() for answer in answers) == 2, "two refusals")
        running.close()
        results = [answer.result() for answer in answers]
    refused = [answer for answer in results if answer.status_code == 503]
    assert len(refused) == 2
    for answer in refused:
        assert float(answer.headers["retry-after"]) > 0
        assert "busy" in answer.json()["error"]


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_stopping_the_server_ends_streams_in_flight_properly(
    make_endless: ServerMaker, stop: signal.Signals
):
    server = make_endless()
    lines: list[dict] = []
    first = threading.Event()

    def read() -> None:
        with httpx.stream(
            "POST", f"{server.url}/api/generate", json=ENDLESS, timeout=PATIENCE
        ) as answer:
            for line in answer.iter_lines():
                lines.append(json.loads(line))
                first.set()

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        assert first.wait(PATIENCE)
        began = time.monotonic()
        assert server.process
        server.process.send_signal(stop)
        reading.result(PATIENCE)  # raises if the answer was cut off instead of ended
    assert server.stop() == 0
    assert time.monotonic() - began < 10
    assert "shutting down" in lines[-1]["error"]
    assert all(not line["done"] for line in lines[:-1])
