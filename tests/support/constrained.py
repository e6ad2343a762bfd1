"""A model whose answers have a form, and ways through such a form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.generation import Constraint, Grammar
from pronk.workers.inference.constraints import ConstraintCompiler, Matcher
from pronk.workers.inference.context import Context, ContextPlan
from pronk.workers.inference.detokenizer import Detokenizer
from pronk.workers.inference.llama import Model
from pronk.workers.inference.samplers import Sampler
from pronk.workers.inference.sampling import SamplingPlan
from pronk.workers.inference.vocabulary import Vocabulary

DEMO = Path(__file__).parents[2] / "workers/store/demo/demo.gguf"

JSON = Constraint(Grammar.JSON)
CLOSING = (b'"', b"}", b"]", b",", b":")


@dataclass
class Bench:
    """A model with all that is needed to have it answer."""

    model: Model
    compiler: ConstraintCompiler

    @property
    def vocabulary(self) -> Vocabulary:
        return self.model.vocabulary

    @cached_property
    def ends(self) -> list[int]:
        """Tokens that end an answer."""
        tokens = range(self.vocabulary.size)
        return [token for token in tokens if self.vocabulary.ends_generation(token)]

    @cached_property
    def closing(self) -> list[int]:
        """Tokens that end something in JSON."""
        pieces = map(self.vocabulary.piece, range(self.vocabulary.size))
        return [token for token, piece in enumerate(pieces) if piece.strip()[:1] in CLOSING]

    def text(self, tokens: list[int]) -> str:
        detokenizer = Detokenizer()
        text = "".join(detokenizer.push(self.vocabulary.piece(token)) for token in tokens)
        return text + detokenizer.finish()


def bench(path: Path) -> Iterator[Bench]:
    model = Model(path)
    yield Bench(model, ConstraintCompiler(model.vocabulary))
    model.close()


def schema(value: object) -> Constraint:
    return Constraint(Grammar.JSON_SCHEMA, json.dumps(value))


def generate(bench: Bench, matcher: Matcher, prompt: str, *, limit: int, plan: SamplingPlan) -> str:
    """The model's answer, with each token chosen as the engine does it."""
    context = Context(bench.model, ContextPlan(slots=1, length=1024, threads=1))
    sampler = Sampler(plan, 7, bench.vocabulary)
    answer: list[int] = []
    try:
        tokens, position = bench.vocabulary.tokenize(prompt), 0
        while len(answer) < limit:
            last = len(tokens) - 1
            context.decode(tokens, range(position, position + last + 1), [0] * len(tokens), [last])
            position += len(tokens)
            matcher.apply(context.logits(last))
            token = sampler.sample(context, last, len(answer))
            matcher.accept(token)
            answer.append(token)
            if bench.vocabulary.ends_generation(token):
                break
            tokens = [token]
        return bench.text(answer)
    finally:
        sampler.close()
        context.close()


def walk(bench: Bench, matcher: Matcher, seed: int, limit: int = 1000) -> list[int]:
    """A random answer of a model that likes to come to an end."""
    rng = np.random.default_rng(seed)
    answer: list[int] = []
    while len(answer) < limit:
        logits = rng.gumbel(size=bench.vocabulary.size).astype(np.float32)
        logits[bench.closing + bench.ends] += 6
        matcher.apply(logits)
        token = int(logits.argmax())
        assert np.isfinite(logits[token])
        matcher.accept(token)
        answer.append(token)
        if bench.vocabulary.ends_generation(token):
            return answer
    raise AssertionError(f"no end: {bench.text(answer)[:500]}")


def allowed(bench: Bench, matcher: Matcher) -> set[int]:
    logits = np.zeros(bench.vocabulary.size, np.float32)
    matcher.apply(logits)
    return {int(token) for token in np.flatnonzero(logits == 0)}


def feed(bench: Bench, matcher: Matcher, text: str) -> None:
    for token in bench.vocabulary.tokenize(text):
        matcher.accept(token)


def refused(bench: Bench, constraint: Constraint) -> PronkError | None:
    """The error that compiling ends with; None when it does not."""
    try:
        bench.compiler.compile(constraint)
    except PronkError as error:
        return error
    return None


def refusal(bench: Bench, constraint: Constraint) -> str:
    error = refused(bench, constraint)
    assert error is not None
    assert error.code is Code.INVALID_REQUEST
    message = error.message
    assert message.startswith("format: ")
    assert len(message) < 500
    assert "\n" not in message
    return message
