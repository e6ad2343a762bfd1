"""`echo` through the whole server: requests, scheduler, worker and frontend without a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from support.server import PATIENCE, Server, ndjson, servers, wait_for

pytestmark = pytest.mark.xdist_group("echo")


@pytest.fixture(scope="module")
def echoing() -> Iterator[Server]:
    with servers() as make:
        yield make(PRONK_ECHO_MODEL="on", PRONK_WORKERS="1")


def test_it_is_listed_loaded_without_llama_cpp_and_answers(echoing: Server) -> None:
    with httpx.Client(base_url=echoing.url, timeout=PATIENCE) as http:
        listed = [model["name"] for model in http.get("/api/tags").json()["models"]]
        assert "echo:latest" in listed
        asked = {"model": "echo", "messages": [{"role": "user", "content": "Grüße, 🦙!"}]}
        lines = ndjson(http.post("/api/chat", json=asked).text)
        assert "".join(line["message"]["content"] for line in lines) == "Grüße, 🦙!"
        assert lines[-1]["done_reason"] == "stop"
        running = http.get("/api/ps").json()["models"]
        assert [(model["name"], model["size"]) for model in running] == [("echo:latest", 0)]
        for worker in echoing.workers():
            assert "libllama" not in Path(f"/proc/{worker.pid}/maps").read_text()


def test_it_says_as_many_tokens_as_were_asked_for(echoing: Server) -> None:
    asked = {"model": "echo", "prompt": "Hello!", "options": {"num_predict": 1001}}
    lines = ndjson(httpx.post(f"{echoing.url}/api/generate", json=asked, timeout=PATIENCE).text)
    assert len(lines) == 1002
    assert "".join(line["response"] for line in lines) == "Hello!" * 500 + "Hell"
    assert (lines[-1]["eval_count"], lines[-1]["done_reason"]) == (1001, "length")


def test_whoever_leaves_frees_the_worker(echoing: Server) -> None:
    asked = {"model": "echo:100", "prompt": "x", "options": {"num_predict": 10**9}}
    with httpx.stream("POST", f"{echoing.url}/api/generate", json=asked, timeout=PATIENCE) as one:
        next(one.iter_lines())
        (worker,) = echoing.workers()
    # The one worker takes another model only after the stream in it was cancelled.
    asked = {"model": "echo", "prompt": "next", "stream": False}
    answer = httpx.post(f"{echoing.url}/api/generate", json=asked, timeout=PATIENCE)
    assert answer.json()["response"] == "next"
    assert wait_for(lambda: not psutil.pid_exists(worker.pid), "the first worker's end")
