"""One stream through the whole server, beside the same llama.cpp calls in a bare loop.

usage: python tests/benchmarks/bench_http.py [--models 12m 0.5b] [--rounds 5] [--threads N]

Both sides have the model loaded, the same number of threads and the same prompt, and take turns:
bare, HTTP, bare, HTTP, … so that a machine that gets warmer or busier does so for both. A turn is
timed from the request, or the first decode, to the last token: reading the prompt, starting the
request and every hop between processes count. The project's bound is a ratio of 0.9 on 0.5b.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.library import add_model
from support.models import ensure_model

PROMPT = "The quick brown fox jumps over the lazy dog."
TOKENS = {"12m": 512, "0.5b": 128}
CONTEXT = 2048
READY_SECONDS = 120


def run_bare(path: str, threads: int) -> None:
    """The bare side, in a process of its own: a number of tokens in, seconds and tokens out."""
    import llama_cpp as c
    import numpy as np

    c.llama_backend_init()
    model = c.llama_model_load_from_file(path.encode(), c.llama_model_default_params())
    vocabulary = c.llama_model_get_vocab(model)
    size = c.llama_vocab_n_tokens(vocabulary)
    params = c.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = CONTEXT, 512, 512, 1
    params.n_threads = params.n_threads_batch = threads
    context = c.llama_init_from_model(model, params)
    prompt = (c.llama_token * 512)()
    data = PROMPT.encode()
    length = c.llama_tokenize(vocabulary, data, len(data), prompt, 512, False, True)
    one = (c.llama_token * 1)()

    def choose() -> int:
        # The quickest greedy choice there is in Python, and the one that the engine takes.
        logits = c.llama_get_logits_ith(context, -1)
        return int(np.ctypeslib.as_array(logits, (size,)).argmax())

    print(json.dumps({"prompt": length}), flush=True)
    for line in sys.stdin:
        wanted = int(line)
        started = time.perf_counter()
        c.llama_memory_clear(c.llama_get_memory(context), False)
        c.llama_decode(context, c.llama_batch_get_one(prompt, length))
        for _ in range(wanted - 1):
            one[0] = choose()
            c.llama_decode(context, c.llama_batch_get_one(one, 1))
        choose()
        print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


class Bare:
    """The bare side, seen from here."""

    def __init__(self, model: Path, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--bare", str(model), "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.prompt = self._read()["prompt"]

    def _read(self) -> dict:
        assert self._process.stdout
        return json.loads(self._process.stdout.readline())

    def seconds(self, tokens: int) -> float:
        """How long the prompt and `tokens` tokens take."""
        assert self._process.stdin
        self._process.stdin.write(f"{tokens}\n")
        self._process.stdin.flush()
        return self._read()["seconds"]

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()


class Server:
    """`pronk serve` on a free port, with a library that holds one model."""

    def __init__(self, library: Path, state: Path, threads: int) -> None:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PRONK_", "OLLAMA_"))
        }
        environment |= {
            "PRONK_HOST": "127.0.0.1:0",
            "PRONK_STATE": str(state),
            "PRONK_MODELS": str(library),
            "PRONK_WORKERS": "1",
            "PRONK_THREADS": str(threads),
            "PRONK_CONTEXT_LENGTH": str(CONTEXT),
            "PRONK_KEEP_ALIVE": "-1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pronk.frontend.cli", "serve"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._port = 0

    def wait_until_ready(self) -> None:
        """Returns when the server said that it is ready."""
        assert self._process.stdout
        readable, _, _ = select.select([self._process.stdout], [], [], READY_SECONDS)
        line = self._process.stdout.readline() if readable else ""
        if not (match := re.search(r"ready at http://127\.0\.0\.1:(\d+)", line)):
            raise SystemExit("the server did not start")
        self._port = int(match[1])

    def seconds(self, tokens: int) -> tuple[float, dict]:
        """How long a streamed answer of `tokens` tokens takes, and its last line."""
        body = {
            "model": "bench",
            "prompt": PROMPT,
            "raw": True,
            "options": {"temperature": 0, "repeat_penalty": 1.0, "num_predict": tokens},
        }
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=600)
        started = time.perf_counter()
        connection.request("POST", "/api/generate", json.dumps(body))
        response = connection.getresponse()
        line = b""
        while more := response.readline():
            line = more
        elapsed = time.perf_counter() - started
        connection.close()
        last = json.loads(line)
        if last.get("eval_count") != tokens:
            raise SystemExit(f"asked for {tokens} tokens, got {last}")
        return elapsed, last

    def close(self) -> None:
        """Ends the server."""
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def sides(model: Path, threads: int) -> Iterator[tuple[Bare, Server]]:
    """Both sides with the model loaded; they are ended afterwards, however that comes."""
    with ExitStack() as stack:
        # The library beside the model, which is linked; the state where the path is short.
        library, state = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pronk-", dir=parent)))
            for parent in (model.parent, "/tmp")
        )
        add_model(library, "bench", model)
        bare = Bare(model, threads)
        stack.callback(bare.close)
        server = Server(library, state, threads)
        stack.callback(server.close)
        server.wait_until_ready()
        yield bare, server


def measure(name: str, threads: int, rounds: int) -> str:
    """One line of the table."""
    tokens = TOKENS[name]
    with sides(ensure_model(name), threads) as (bare, server):
        bare.seconds(tokens)
        _, last = server.seconds(tokens)  # loads the model
        if last["prompt_eval_count"] != bare.prompt:
            raise SystemExit(f"prompts differ: {last['prompt_eval_count']} and {bare.prompt}")
        loop, through = [], []
        for _ in range(rounds):
            loop.append(tokens / bare.seconds(tokens))
            through.append(tokens / server.seconds(tokens)[0])
    ours, theirs = statistics.median(through), statistics.median(loop)
    spread = max(max(rates) / min(rates) for rates in (loop, through))
    return (
        f"{name:>6} {tokens:>7} {theirs:>12.1f} {ours:>12.1f} {ours / theirs:>7.3f} {spread:>8.2f}"
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=TOKENS, default=list(TOKENS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare:
        run_bare(arguments.bare, arguments.threads)
        return
    print(f"one stream, {arguments.threads} threads, medians of {arguments.rounds} turns each")
    heads = f"{'bare tok/s':>12} {'HTTP tok/s':>12} {'ratio':>7} {'max/min':>8}"
    print(f"{'model':>6} {'tokens':>7} {heads}")
    for name in arguments.models:
        print(measure(name, arguments.threads, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
