"""A stream goes on in another worker as if nothing had happened; `echo` says what that means."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import httpx
import pytest

from support.server import PATIENCE, Server, ServerMaker, wait_for

PROMPT = "Über sieben Brücken, 🦙!"
ROUND = -(-len(PROMPT) // 4)
"""Tokens of the prompt."""
TOKENS = 300
STREAMS = 8
TOLD, HELD = 1, 2
"""The streams with log probabilities, and with a stop text that never comes but often begins."""


@pytest.fixture
def echoing(make_server: ServerMaker) -> Server:
    return make_server(PRONK_ECHO_MODEL="on", PRONK_WORKERS="2")


def asked(number: int) -> dict[str, Any]:
    options: dict[str, Any] = {"num_predict": TOKENS + number}
    if number == HELD:
        options["stop"] = [PROMPT[-9:] + PROMPT[:9] + "x"]
    return {"model": "echo:100", "prompt": PROMPT, "options": options, "logprobs": number == TOLD}


def undisturbed(tokens: int) -> str:
    return PROMPT * (tokens // ROUND) + PROMPT[: tokens % ROUND * 4]


def test_streams_whose_worker_is_killed_say_every_token_once(echoing: Server) -> None:
    started = Barrier(STREAMS + 1, timeout=PATIENCE)

    def read(number: int) -> list[dict[str, Any]]:
        url, lines = f"{echoing.url}/api/generate", list[dict[str, Any]]()
        with httpx.stream("POST", url, json=asked(number), timeout=PATIENCE) as answer:
            for line in answer.iter_lines():
                lines.append(json.loads(line))
                if len(lines) == 20:
                    started.wait()
        return lines

    with ThreadPoolExecutor(STREAMS) as pool:
        reading = [pool.submit(read, number) for number in range(STREAMS)]
        started.wait()
        victims = echoing.workers()
        for victim in victims:
            victim.kill()
        answers = [one.result(PATIENCE) for one in reading]
    for number, lines in enumerate(answers):
        tokens = TOKENS + number
        assert "".join(line["response"] for line in lines) == undisturbed(tokens), lines[-1]
        assert (lines[-1]["eval_count"], lines[-1]["done_reason"]) == (tokens, "length")
        assert len(lines) == tokens + 1 or number == HELD
    told = [one for line in answers[TOLD] for one in line.get("logprobs", ())]
    assert b"".join(bytes(one["bytes"]) for one in told).decode() == undisturbed(TOKENS + TOLD)
    resumed = "attempt 2 follows a lost one"
    wait_for(lambda: resumed in echoing.written("frontend"), "they were killed in the stream", 10)
    pids = {victim.pid for victim in victims}
    assert wait_for(lambda: pids.isdisjoint(w.pid for w in echoing.workers()), "new workers")
