"""Devices of a real server: discovered or declared, and models placed in what is left of them."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest

from support.server import PATIENCE, ServerMaker, wait_for

REQUEST = {"model": "demo", "prompt": "hi", "stream": False, "options": {"num_predict": 3}}


def test_one_worker_counts_the_devices_and_the_next_one_serves(make_server: ServerMaker):
    server = make_server(PRONK_WORKERS="1")
    answer = httpx.post(f"{server.url}/api/generate", json=REQUEST, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text + server.logs()
    assert answer.json()["eval_count"] == 3
    wait_for(lambda: "device CPU (CPU):" in server.written("scheduler"), "the device's line")
    # A job is no crash, and makes nobody wait.
    assert "crashed" not in server.written("worker")


def test_a_model_is_measured_where_devices_are_declared(make_server: ServerMaker):
    server = make_server(PRONK_WORKERS="1", PRONK_DEVICES='[{"name":"sim0","memory":"1GiB"}]')
    answer = httpx.post(f"{server.url}/api/generate", json=REQUEST, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text + server.logs()
    assert answer.json()["eval_count"] == 3
    wait_for(lambda: "its job is done" in server.written("scheduler"), "the job's line")
    assert "device CPU" not in server.written("scheduler")
    (loaded,) = server.loaded()
    assert loaded["size"] > 0
    # The worker that measured is gone, and one of the two that followed it holds the model.
    wait_for(lambda: len(server.workers()) == 1, "one worker")


@pytest.mark.parametrize("text", ["sim0", '[{"name":"a","memory":"much"}]'])
def test_a_wrong_declaration_is_told_before_anything_starts(make_server: ServerMaker, text: str):
    server = make_server(start=False, PRONK_DEVICES=text)
    done = subprocess.run(
        [sys.executable, "-m", "pronk.frontend.cli", "serve"],
        env=server.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert f"PRONK_DEVICES={text}: " in done.stderr
    assert len(done.stderr.splitlines()) == 1
