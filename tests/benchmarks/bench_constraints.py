"""Structured output beside free output: what following a schema costs.

usage: python tests/benchmarks/bench_constraints.py [--model 0.5b] [--rounds 5] [--threads N]

Both sides do what the engine does for one token (decode, sample, accept) and take turns. The
model's weights are random, so the constrained answers are random JSON; those that end early begin
again with a new matcher, compiled before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import numpy as np

from pronk.protocol.messages.generation import Constraint, Grammar
from pronk.workers.inference.constraints import ConstraintCompiler, Matcher
from pronk.workers.inference.llama import Context, Model, Sampler
from pronk.workers.inference.sampling import SamplingPlan
from support.models import ensure_model

PROMPT = "The quick brown fox jumps over the lazy dog. " * 4
TOKENS = {"12m": 256, "0.5b": 64}

_PERSON = {
    "name": {"type": "string"},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "email": {"type": "string", "format": "email"},
    "born": {"type": "string", "format": "date-time"},
    "zip": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{4,8}$"},
    "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1},
}
_NODE = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/node"}},
    },
    "required": ["text", "parts"],
}


def _schema(value: object) -> Constraint:
    return Constraint(Grammar.JSON_SCHEMA, json.dumps(value))


CONSTRAINTS = {
    "json": Constraint(Grammar.JSON),
    "record": _schema({"type": "object", "properties": _PERSON, "required": list(_PERSON)}),
    "tree": _schema({"$defs": {"node": _NODE}, "$ref": "#/$defs/node"}),
    "100 optional": _schema(
        {"type": "object", "properties": {f"field_{i}": {"type": "string"} for i in range(100)}}
    ),
}


class Bench:
    """One model, and answers of a fixed number of tokens from it."""

    def __init__(self, path: Path, threads: int) -> None:
        self.model = Model(path)
        self.compiler = ConstraintCompiler(self.model.vocabulary)
        self._context = Context(self.model, 2048, threads, 512)
        self._prompt = self.model.vocabulary.tokenize(PROMPT)
        self.masks: list[float] = []
        """Seconds that each mask took to compute and apply."""

    def turn(self, count: int, constraint: Constraint | None) -> float:
        """Generates `count` tokens behind the prompt; returns tokens per second."""
        matchers = [self.compiler.compile(constraint) for _ in range(8)] if constraint else []
        sampler = Sampler(SamplingPlan(), 7, self.model.vocabulary.size)
        self._context.clear()
        self._context.decode(self._prompt, 0, logits=True)
        matcher: Matcher | None = matchers.pop() if matchers else None
        began = time.perf_counter()
        for index in range(count):
            if matcher is not None:
                if matcher.finished and matchers:
                    matcher = matchers.pop()
                before = time.perf_counter()
                matcher.apply(self._context.logits())
                self.masks.append(time.perf_counter() - before)
            token = sampler.sample(self._context, index)
            if matcher is not None and not matcher.finished:
                matcher.accept(token)
            self._context.decode([token], len(self._prompt) + index, logits=True)
        speed = count / (time.perf_counter() - began)
        sampler.close()
        return speed


def measure(model: str, rounds: int, threads: int) -> None:
    """Prints one line for each constraint."""
    bench, count = Bench(ensure_model(model), threads), TOKENS[model]  # type: ignore[arg-type]
    began = time.perf_counter()
    bench.compiler.compile(CONSTRAINTS["json"])
    print(f"vocabulary read in {time.perf_counter() - began:.2f} s")
    print("constraint    compile ms   mask median, p99 µs     free  constrained    ratio")
    bench.turn(count, None)
    for name, constraint in CONSTRAINTS.items():
        began = time.perf_counter()
        bench.compiler.compile(constraint)
        compiling = time.perf_counter() - began
        bench.turn(count, constraint)
        bench.masks.clear()
        speeds = [(bench.turn(count, None), bench.turn(count, constraint)) for _ in range(rounds)]
        free, constrained = (statistics.median(side) for side in zip(*speeds, strict=True))
        ratio = statistics.median(one / other for other, one in speeds)
        median, high = np.percentile(bench.masks, [50, 99]) * 1e6
        print(
            f"{name:13} {compiling * 1e3:10.1f} {median:12.0f} {high:10.0f} {free:8.1f} "
            f"{constrained:12.1f} {ratio:8.3f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=list(TOKENS), default="0.5b")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    measure(arguments.model, arguments.rounds, arguments.threads)


if __name__ == "__main__":
    main()
