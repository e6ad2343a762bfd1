"""The step loop: each step computes some tokens of a sequence and tells what came of it.

Reading a prompt and writing an answer are the same step: compute the tokens that are not in the KV
cache yet, at most `BATCH` of them, and when none is left, choose the next one. A new sequence has a
whole prompt to compute; later there is always exactly one token.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...protocol.errors import Code
from ...protocol.messages.failure import Failure
from ...protocol.messages.generation import Chunk, Failed, Finished, Generate, GenerateBody
from ...protocol.messages.placement import Outcome, Released
from .embedder import Embedder
from .llama import Context, DecodeFailed, Model, Sampler, native_log
from .sampling import plan_sampling
from .sequence import Sequence
from .stop import StopMatcher

_log = logging.getLogger(__name__)

BATCH = 512
"""Tokens of a prompt that one step computes: between two steps a cancellation is seen."""


@dataclass(slots=True)
class _Run:
    """A request's sequence at work."""

    request: str
    attempt: int
    sequence: Sequence
    sampler: Sampler
    return_context: bool
    resumed: int
    """Tokens of the answer that an earlier attempt made."""
    started: int
    first_token: int = 0

    def released(self, outcome: Outcome) -> Released:
        tokens = max(self.sequence.count - self.resumed, 0)
        return Released(self.request, self.attempt, outcome, tokens)


class Engine:
    """One model with one slot. Belongs to one thread; only `steps` may be read by others."""

    def __init__(self, path: Path, context_length: int, threads: int) -> None:
        """Loads the model and computes one token, so that the first request finds all in place.

        Raises `PronkError` (LOAD_FAILED) with llama.cpp's reason.
        """
        self.model = Model(path)
        self.vocabulary = self.model.vocabulary
        self.context_length = min(context_length, self.model.trained_context or context_length)
        self.embedder = Embedder(self.model, context_length, threads)
        self.steps = 0
        """Steps so far: what stands still while there is work has hung."""
        self._run: _Run | None = None
        self._context: Context | None = None
        if self.model.generates:
            self._context = Context(self.model, self.context_length, max(threads, 1), BATCH)
            self._warm_up(self._context)
        self.size = native_log.allocated
        """Bytes that the replica takes: weights, KV cache, compute buffers."""

    def _warm_up(self, context: Context) -> None:
        try:
            context.decode([self.vocabulary.bos or 0], 0, logits=True)
        except DecodeFailed as error:
            _log.error("the first decode failed: %s", error)
            raise self.model.load_error() from None
        context.clear(wipe=True)

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do. A busy engine takes no other request."""
        return self._run is not None

    def start(self, header: Generate, body: GenerateBody, prompt: list[int]) -> None:
        """Takes a request whose prompt has room in its context. The engine must not be busy.

        Raises `PronkError` when an option is out of bounds.
        """
        context_length = self.context_for(header)
        limit = context_length - len(prompt)
        if body.options.num_predict is not None and body.options.num_predict > 0:
            limit = min(limit, body.options.num_predict)
        sequence = Sequence(
            prompt, self.vocabulary, limit=limit, stops=StopMatcher(body.options.stop or ())
        )
        for token in body.tokens:  # their text was shown by the attempt that made them
            sequence.accept(token)
        plan = plan_sampling(body.options, context_length)
        sampler = Sampler(plan, header.seed, self.vocabulary.size)
        sampler.see(sequence.tokens)
        assert self._context
        self._context.clear()
        self._run = _Run(
            header.request,
            header.attempt,
            sequence,
            sampler,
            body.return_context,
            sequence.count,
            time.monotonic_ns(),
        )

    def context_for(self, header: Generate) -> int:
        """Tokens of context that a request gets: what it asks for, cut from what is there."""
        return min(self.context_length, header.context_length or self.context_length)

    def cancel(self, request: str, attempt: int) -> list[Any]:
        """Ends a request, if it is still there."""
        run = self._run
        if run is None or (run.request, run.attempt) != (request, attempt):
            return []
        return [self._release(run, Outcome.CANCELLED)]

    def step(self) -> list[Any]:
        """Advances the sequence; returns messages for its frontend, and `Released` at its end.

        What goes wrong ends this request with an error and leaves the engine fit for the next.
        """
        run = self._run
        if run is None or self._context is None:
            return []
        self.steps += 1
        try:
            return self._advance(run, self._context)
        except DecodeFailed as error:
            _log.error("request %s: %s", run.request, error)
        except Exception:
            _log.exception("request %s", run.request)
        self._context.clear(wipe=True)
        failure = Failure(
            Code.INTERNAL, "the model could not compute this request; see the server's log"
        )
        return [Failed(run.request, run.attempt, failure), self._release(run, Outcome.FAILED)]

    def _advance(self, run: _Run, context: Context) -> list[Any]:
        sequence = run.sequence
        if sequence.reason:  # the earlier attempt died between its last token and its end
            return self._finish(run)
        tokens = sequence.tokens[sequence.position : sequence.position + BATCH]
        position = sequence.position + len(tokens)
        complete = position == len(sequence.tokens)
        context.decode(tokens, sequence.position, logits=complete)
        sequence.position = position
        if not complete:
            return []
        index = sequence.count
        token = run.sampler.sample(context, index)
        run.first_token = run.first_token or time.monotonic_ns()
        chunk = Chunk(run.request, run.attempt, index, [token], sequence.accept(token))
        return [chunk, *self._finish(run)] if sequence.reason else [chunk]

    def _finish(self, run: _Run) -> list[Any]:
        sequence = run.sequence
        assert sequence.reason is not None
        now = time.monotonic_ns()
        first_token = run.first_token or now
        finished = Finished(
            run.request,
            run.attempt,
            sequence.reason,
            eval_count=sequence.count,
            eval_duration=now - first_token,
            prompt_eval_count=sequence.prompt_length,
            prompt_eval_duration=first_token - run.started,
            context=sequence.tokens if run.return_context else None,
        )
        return [finished, self._release(run, Outcome.FINISHED)]

    def _release(self, run: _Run, outcome: Outcome) -> Released:
        run.sampler.close()
        self._run = None
        return run.released(outcome)

    def close(self) -> None:
        """Gives all memory back. The process of a worker just exits instead."""
        if self._run:
            self._release(self._run, Outcome.CANCELLED)
        if self._context:
            self._context.close()
        self.embedder.close()
        self.model.close()
