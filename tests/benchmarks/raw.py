"""llama.cpp in the shortest loop there is, in a process of its own: what the server is measured by.

usage: python -m benchmarks.raw MODEL SLOTS CONTEXT THREADS, then a JSON object per line on stdin

It knows all prompts from the start, reads them packed into full batches, and then computes one
batch per step with a row for every text that is not finished. The longest texts have the lowest
sequence ids, so that those still running always stand side by side, which is what llama.cpp likes
best. The choice of tokens is greedy, in one call of numpy for all rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

Mode = Literal["streams", "unified"]
MODES: tuple[Mode, ...] = ("streams", "unified")
_BATCH = 512


class Raw:
    """The raw side, seen from the benchmark."""

    def __init__(self, model: Path, slots: int, context: int, threads: int) -> None:
        """`context` in tokens for each of the `slots`. Returns when the model is loaded."""
        arguments = [str(model), str(slots), str(context), str(threads)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.raw", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answer()
        self.mode: Mode = "streams"

    def seconds(self, prompts: Sequence[str], counts: Sequence[int]) -> float:
        """How long the texts take: to each of `prompts`, as many tokens as `counts` says."""
        return self._ask({"prompts": prompts, "counts": counts, "mode": self.mode})["seconds"]

    def tokens(self, prompt: str) -> int:
        """How many tokens a prompt has."""
        return self._ask({"count": prompt})["tokens"]

    def choose_mode(self, prompts: Sequence[str], tokens: int) -> float:
        """Takes the mode of the KV cache that is the faster one; returns its seconds."""
        took: dict[Mode, float] = {}
        for mode in MODES:
            self.mode = mode
            counts = [tokens] * len(prompts)
            took[mode] = min(self.seconds(prompts, counts) for _ in range(2))
        self.mode = min(took, key=lambda mode: took[mode])
        return took[self.mode]

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the raw side has died; it may lack memory")
        return json.loads(line)

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()


class _Loop:
    """The process' own side: a model, and a context for each mode."""

    def __init__(self, path: str, slots: int, context: int, threads: int) -> None:
        import llama_cpp

        self._c: Any = llama_cpp
        c = self._c
        c.llama_backend_init()
        self._model = c.llama_model_load_from_file(path.encode(), c.llama_model_default_params())
        self._vocabulary = c.llama_model_get_vocab(self._model)
        self._size = c.llama_vocab_n_tokens(self._vocabulary)
        params = c.llama_context_default_params()
        params.n_ctx, params.n_seq_max = slots * context, slots
        params.n_batch = params.n_ubatch = _BATCH
        params.n_threads = params.n_threads_batch = threads
        self._contexts: dict[Mode, Any] = {}
        for mode in MODES:
            params.kv_unified = mode == "unified"
            self._contexts[mode] = c.llama_init_from_model(self._model, params)
            assert self._contexts[mode]
        batch = self._batch = c.llama_batch_init(_BATCH, 0, 1)
        for row in range(_BATCH):
            batch.n_seq_id[row] = 1
        self._tokens, self._positions, self._wanted = (
            np.ctypeslib.as_array(part, (_BATCH,))
            for part in (batch.token, batch.pos, batch.logits)
        )

    def tokenize(self, text: str) -> list[int]:
        data = text.encode()
        room = len(data) + 8
        tokens = (self._c.llama_token * room)()
        count = self._c.llama_tokenize(self._vocabulary, data, len(data), tokens, room, False, True)
        return tokens[:count]

    def seconds(self, prompts: Sequence[str], counts: Sequence[int], mode: Mode) -> float:
        started = time.perf_counter()
        context = self._contexts[mode]
        self._c.llama_memory_clear(self._c.llama_get_memory(context), False)
        longest_first = sorted(range(len(prompts)), key=lambda index: -counts[index])
        texts = [self.tokenize(prompts[index]) for index in longest_first]
        remaining = np.array([counts[index] for index in longest_first])
        chosen = np.empty(len(texts), np.int32)
        self._read(context, texts, chosen)
        positions = np.array([len(text) for text in texts], np.int32)
        remaining -= 1
        for row in range(len(texts)):
            self._batch.seq_id[row][0] = row
        self._wanted[:] = 1
        while active := int((remaining > 0).sum()):
            self._tokens[:active] = chosen[:active]
            self._positions[:active] = positions[:active]
            self._decode(context, active)
            chosen[:active] = self._logits(context, active).argmax(axis=1)
            positions[:active] += 1
            remaining[:active] -= 1
        return time.perf_counter() - started

    def _read(self, context: Any, texts: list[list[int]], chosen: np.ndarray) -> None:
        """Reads all prompts; leaves the first token of each answer in `chosen`."""
        rows = [
            (token, position, sequence, position == len(text) - 1)
            for sequence, text in enumerate(texts)
            for position, token in enumerate(text)
        ]
        done = 0
        for start in range(0, len(rows), _BATCH):
            part = rows[start : start + _BATCH]
            for row, (token, position, sequence, last) in enumerate(part):
                self._tokens[row], self._positions[row] = token, position
                self._batch.seq_id[row][0] = sequence
                self._wanted[row] = last
            self._decode(context, len(part))
            if ended := sum(last for *_, last in part):
                chosen[done : done + ended] = self._logits(context, ended).argmax(axis=1)
                done += ended

    def _decode(self, context: Any, rows: int) -> None:
        self._batch.n_tokens = rows
        assert self._c.llama_decode(context, self._batch) == 0

    def _logits(self, context: Any, rows: int) -> np.ndarray:
        return np.ctypeslib.as_array(self._c.llama_get_logits(context), (rows, self._size))


def main() -> None:
    """Answers questions until stdin ends."""
    path, *numbers = sys.argv[1:]
    loop = _Loop(path, *(int(number) for number in numbers))
    print("{}", flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        if "count" in question:
            answer: dict[str, float] = {"tokens": len(loop.tokenize(question["count"]))}
        else:
            answer = {"seconds": loop.seconds(**question)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
