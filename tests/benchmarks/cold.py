"""How soon a model that nobody has loaded says its first token.

usage: python -m benchmarks.cold MODEL CONTEXT THREADS, then a line on stdin

The raw side is one process that loads the model with llama.cpp, reads the prompt and chooses a
token. It is as warm as a blank worker when its time begins: Python and numpy are there, llama_cpp,
which takes hold of devices, is not.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from support.models import ensure_model
from support.server import PATIENCE, Server, wait_for

from .load import connect, run
from .stand import MODEL, Plan, Texts, completion, line, ratio_with_spread, serving

CONTEXT = 4096
PROMPT_LETTERS = 24


def cold(plan: Plan) -> None:
    """The first token of an unloaded model through HTTP, beside one process that does only that."""
    for model in plan.models:
        weights = ensure_model(model)  # type: ignore[arg-type]
        texts = Texts(9)
        ours, theirs = list[float](), list[float]()
        with serving(model, 1, CONTEXT, plan.threads) as server:
            for _ in range(plan.rounds + 1):  # the first one warms the disk's cache
                ours.append(run(_first_token(server.port, texts.text(PROMPT_LETTERS))))
                _unload(server)
                theirs.append(_raw(weights, plan.threads, texts.text(PROMPT_LETTERS)))
        ratios = [mine / raw for mine, raw in zip(ours[1:], theirs[1:], strict=True)]
        line(
            model,
            "first token of an unloaded model",
            f"{statistics.median(ours[1:]) * 1000:.0f} ms",
            f"raw {statistics.median(theirs[1:]) * 1000:.0f} ms",
            ratio_with_spread(ratios),
            "≤ 1.30",
        )


async def _first_token(port: int, prompt: str) -> float:
    exchange = await connect(port)
    exchange.send("/api/generate", completion(prompt, 2))
    await asyncio.wait_for(exchange.started, PATIENCE)
    await asyncio.wait_for(exchange.done, PATIENCE)
    exchange.close()
    return exchange.first - exchange.sent


def _unload(server: Server) -> None:
    """Returns when the worker is a blank one again, and the machine has nothing else to do."""
    (old,) = server.workers()
    asked = {"model": MODEL, "keep_alive": 0}
    httpx.post(f"{server.url}/api/generate", json=asked, timeout=PATIENCE)

    def replaced() -> bool:
        workers = server.workers()
        return len(workers) == 1 and workers[0].pid != old.pid and _idle(workers[0])

    wait_for(replaced, "a blank worker")


def _idle(worker: Any) -> bool:
    """Whether it has done nothing for a moment: what it imports while blank is imported."""
    before = worker.cpu_times().user
    time.sleep(0.3)
    return before > 0.1 and worker.cpu_times().user - before < 0.02


def _raw(weights: Path, threads: int, prompt: str) -> float:
    arguments = [str(weights), str(CONTEXT), str(threads)]
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.cold", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        began = time.perf_counter()
        process.stdin.write(prompt + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        took = time.perf_counter() - began
    if not answer.strip().isdigit():
        raise SystemExit("the raw side did not answer")
    return took


def main() -> None:
    """Waits for a prompt, then loads the model and writes the first token's id."""
    path, context_length, threads = sys.argv[1:]
    print("ready", flush=True)
    data = sys.stdin.readline().rstrip("\n").encode()

    import llama_cpp

    c: Any = llama_cpp
    c.llama_backend_init()
    model = c.llama_model_load_from_file(path.encode(), c.llama_model_default_params())
    vocabulary = c.llama_model_get_vocab(model)
    params = c.llama_context_default_params()
    params.n_ctx = int(context_length)
    params.n_threads = params.n_threads_batch = int(threads)
    context = c.llama_init_from_model(model, params)
    room = len(data) + 8
    tokens = (c.llama_token * room)()
    count = c.llama_tokenize(vocabulary, data, len(data), tokens, room, False, True)
    assert c.llama_decode(context, c.llama_batch_get_one(tokens, count)) == 0
    logits = np.ctypeslib.as_array(
        c.llama_get_logits_ith(context, -1), (c.llama_vocab_n_tokens(vocabulary),)
    )
    print(int(logits.argmax()), flush=True)


if __name__ == "__main__":
    main()
