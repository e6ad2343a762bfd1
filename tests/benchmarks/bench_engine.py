"""The engine in one process, beside the same llama.cpp calls in a bare loop.

usage: python tests/benchmarks/bench_engine.py [--models 12m 0.5b] [--rounds 5] [--threads N]

Same model, threads, context and sampler chain; both sides take turns, so that a machine that gets
busier does so for both. What is timed is the whole request: prompt, tokens, text. The engine also
detokenizes, looks for stop texts, checks logits for NaN, makes a message of every token and seeds
every draw anew, which the bare loop does not.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import llama_cpp as c

from pronk.protocol.messages.generation import (
    Caller,
    Chunk,
    Generate,
    GenerateBody,
    Kind,
    SamplingOptions,
)
from pronk.workers.inference.engine import Engine
from support.models import ensure_model

PROMPT = "The quick brown fox jumps over the lazy dog. " * 4
TOKENS = {"12m": 512, "0.5b": 96}
CONTEXT = 2048


def engine_turn(engine: Engine, options: SamplingOptions, count: int) -> int:
    """Generates with the engine; returns the number of tokens."""
    body = GenerateBody(Kind.COMPLETION, options, prompt=PROMPT, raw=True)
    header = Generate("0" * 32, 1, "m", "d" * 64, Caller(), "f" * 16, "ipc://x", 7, 1)
    engine.start(header, body, engine.vocabulary.tokenize(PROMPT))
    generated = 0
    while engine.busy:
        generated += sum(isinstance(message, Chunk) for message in engine.step())
    assert generated == count, "an answer ended early"
    return generated


class Bare:
    """llama.cpp called in the shortest loop there is."""

    def __init__(self, path: str, threads: int) -> None:
        model_params = c.llama_model_default_params()
        model_params.n_gpu_layers = 0
        self.model: Any = c.llama_model_load_from_file(path.encode(), model_params)
        self.vocabulary: Any = c.llama_model_get_vocab(self.model)
        params = c.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = CONTEXT, 512, 512, 1
        params.n_threads = params.n_threads_batch = threads
        self.context: Any = c.llama_init_from_model(self.model, params)

    def chain(self, greedy: bool) -> Any:
        chain: Any = c.llama_sampler_chain_init(c.llama_sampler_chain_default_params())
        samplers = (
            [c.llama_sampler_init_greedy()]
            if greedy
            else [
                c.llama_sampler_init_top_k(40),
                c.llama_sampler_init_top_p(0.9, 1),
                c.llama_sampler_init_temp(0.8),
                c.llama_sampler_init_dist(7),
            ]
        )
        for sampler in samplers:
            c.llama_sampler_chain_add(chain, sampler)
        return chain

    def turn(self, greedy: bool, count: int) -> int:
        c.llama_memory_clear(c.llama_get_memory(self.context), False)
        chain = self.chain(greedy)
        tokens = (ctypes.c_int32 * 512)()
        data = PROMPT.encode()
        size = c.llama_tokenize(self.vocabulary, data, len(data), tokens, 512, False, True)
        batch = c.llama_batch_get_one(tokens, size)
        for _ in range(count):
            assert c.llama_decode(self.context, batch) == 0
            tokens[0] = c.llama_sampler_sample(chain, self.context, -1)
            batch = c.llama_batch_get_one(tokens, 1)
        c.llama_sampler_free(chain)
        return count


def speed(turn: Callable[[], int]) -> float:
    """Tokens per second of one turn."""
    began = time.perf_counter()
    return turn() / (time.perf_counter() - began)


def measure(name: str, rounds: int, threads: int) -> None:
    path = ensure_model(name)  # type: ignore[arg-type]
    engine, bare = Engine(path, CONTEXT, threads), Bare(str(path), threads)
    count = TOKENS[name]
    for label, greedy in (("greedy", True), ("sampled", False)):
        options = SamplingOptions(temperature=0.0 if greedy else None, num_predict=count)
        turns: dict[str, Callable[[], int]] = {
            "bare": lambda greedy=greedy: bare.turn(greedy, count),
            "engine": lambda options=options: engine_turn(engine, options, count),
        }
        speeds: dict[str, list[float]] = {side: [] for side in turns}
        for turn in turns.values():
            turn()  # the first one of each warms up
        for _ in range(rounds):
            for side, turn in turns.items():
                speeds[side].append(speed(turn))
        medians = {side: statistics.median(values) for side, values in speeds.items()}
        ratios = sorted(e / b for e, b in zip(speeds["engine"], speeds["bare"], strict=True))
        print(
            f"{name:6} {label:8} {medians['bare']:10.1f} {medians['engine']:10.1f} "
            f"{medians['engine'] / medians['bare']:8.3f}   {ratios[0]:.3f} to {ratios[-1]:.3f}",
            flush=True,
        )
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", choices=list(TOKENS), default=list(TOKENS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    for name in arguments.models:
        ensure_model(name)
    print(f"tokens/s, medians of {arguments.rounds} turns, {arguments.threads} threads")
    print("model  decoding       bare     engine    ratio   range of single ratios")
    for name in arguments.models:
        measure(name, arguments.rounds, arguments.threads)


if __name__ == "__main__":
    main()
