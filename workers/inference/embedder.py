"""Embedding requests in the engine: many texts in one step, of as many requests as there are.

The engine's thread alternates `step` with the steps of generation, so a step is small: `PACK`
tokens, or one text where the model needs it whole. Requests take turns, text by text: a
long list delays a single text by no more than its share.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...protocol.deadline import deadline_exceeded, is_over
from ...protocol.errors import Code, PronkError
from ...protocol.host import usable_threads
from ...protocol.messages.embedding import Embed, Embedded
from ...protocol.messages.failure import Failure
from ...protocol.messages.generation import Failed
from ...protocol.messages.placement import Outcome, Released
from .embedding_context import EmbeddingContext, Part
from .embedding_inputs import EmbedInputs
from .llama import DecodeFailed, Model
from .messages import INCOMPUTABLE, WithNumbers

_log = logging.getLogger(__name__)

BATCH = 512
"""Tokens of one long text that a step computes, where the model does not need it whole."""

PACK = 128
"""Tokens of several texts that share a step. More gain nothing on a CPU: the attention of each is
computed against all the others before it is masked, which at 512 doubled the time of a text."""

_TINY = 1e-12
"""The least length by which a vector is divided."""


@dataclass(slots=True, eq=False)
class _Job:
    """One request at work."""

    header: Embed
    inputs: EmbedInputs
    vectors: list[np.ndarray[Any, Any]] = field(default_factory=list[Any])
    """Of the texts that are done, in their order."""
    position: int = 0
    """Tokens of the next text that are computed, where it takes several steps."""
    alone: bool = False
    """Whether it shares no step with others, because one that it shared has failed."""

    @property
    def done(self) -> bool:
        return len(self.vectors) == len(self.inputs.tokens)


class Embedder:
    """All embedding requests of one model. Belongs to the engine's thread, except `steps`."""

    def __init__(self, model: Model, context_length: int, threads: int) -> None:
        """Takes no memory yet where the model generates text: nobody may ever ask for a vector.

        An encoder is made ready at once. Raises `PronkError` (LOAD_FAILED) with llama.cpp's reason.
        """
        self._model = model
        self._threads = usable_threads(threads)
        self.context_length = min(context_length, model.trained_context or context_length)
        """Tokens that a text may have."""
        self.steps = 0
        """Steps so far: what stands still while there is work has hung."""
        self._jobs: deque[_Job] = deque()
        self._context: EmbeddingContext | None = None
        if not model.generates:
            self._warm_up()

    def _warm_up(self) -> None:
        try:
            self._open().compute([Part([self._model.vocabulary.bos or 0])])
        except DecodeFailed as error:
            _log.error("the first embedding failed: %s", error)
            raise self._model.load_error() from None

    def _open(self) -> EmbeddingContext:
        if self._context is None:
            self._context = EmbeddingContext(self._model, self.context_length, self._threads, BATCH)
        return self._context

    def set_threads(self, threads: int) -> None:
        """Computes with so many threads from the next step on."""
        self._threads = usable_threads(threads)
        if self._context:
            self._context.set_threads(self._threads)

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._jobs)

    def submit(self, header: Embed, inputs: EmbedInputs) -> None:
        """Takes a request: any number of them at a time."""
        self._jobs.append(_Job(header, inputs))

    def cancel(self, request: str, attempt: int) -> list[Any]:
        """Ends a request, if it is still there."""
        for job in self._jobs:
            if (job.header.request, job.header.attempt) == (request, attempt):
                return [self._release(job, Outcome.CANCELLED)]
        return []

    def step(self) -> list[Any]:
        """Computes some texts; returns `WithNumbers`, `Failed` and `Released` of what ended.

        What goes wrong ends the request that it goes wrong with, and no other.
        """
        overdue = self._drop_overdue()
        return overdue + self._step() if self._jobs else overdue

    def _drop_overdue(self) -> list[Any]:
        now = time.time()
        return [
            message
            for job in list(self._jobs)
            if is_over(job.header.deadline, now)
            for message in self._fail(job, Failure.of(deadline_exceeded()))
        ]

    def _step(self) -> list[Any]:
        self.steps += 1
        jobs: list[_Job] = []
        try:
            context = self._open()
            pack = self._pack(context)
            jobs = [job for job, _ in pack]
            vectors = context.compute([part for _, part in pack])
            if any(vector is not None and not np.isfinite(vector).all() for vector in vectors):
                context.forget()
                raise DecodeFailed("an embedding is not finite")
        except DecodeFailed as error:
            return self._failed(jobs, str(error))
        except PronkError as error:  # no memory for the context, and none for the next request
            _log.error("embeddings cannot be computed: %s", error.message)
            failure = Failure(Code.UNAVAILABLE, "there is no memory left to compute embeddings")
            return [message for job in list(self._jobs) for message in self._fail(job, failure)]
        except Exception:
            _log.exception("an embedding step failed")
            return self._failed(jobs or list(self._jobs), "see above")
        for (job, part), vector in zip(pack, vectors, strict=True):
            job.position = 0 if part.ends else part.position + len(part.tokens)
            if vector is not None:
                job.vectors.append(vector)
        ended = [message for job in dict.fromkeys(jobs) if job.done for message in self._end(job)]
        if self._jobs and not self._jobs[0].position:
            self._jobs.rotate(-1)
        return ended

    def _pack(self, context: EmbeddingContext) -> list[tuple[_Job, Part]]:
        """What the next step computes: at least something of the first request."""
        first = self._jobs[0]
        tokens = first.inputs.tokens[len(first.vectors)]
        if len(tokens) > context.capacity:
            end = first.position + context.capacity
            part = Part(tokens[first.position : end], first.position, end >= len(tokens))
            return [(first, part)]
        sharing = [first] if first.alone else [job for job in self._jobs if not job.alone]
        waiting = deque((job, len(job.vectors)) for job in sharing)
        pack: list[tuple[_Job, Part]] = []
        room = max(PACK, len(tokens))
        while waiting and len(pack) < context.sequences:
            job, index = waiting.popleft()
            tokens = job.inputs.tokens[index]
            if len(tokens) > room:
                continue
            room -= len(tokens)
            pack.append((job, Part(tokens)))
            if index + 1 < len(job.inputs.tokens):
                waiting.append((job, index + 1))
        return pack

    def _failed(self, jobs: list[_Job], reason: str) -> list[Any]:
        """After a step that failed: its request ends, or each of several is tried alone."""
        unique = list(dict.fromkeys(jobs))
        known = all(job.alone for job in unique)
        for job in unique:
            job.position = 0
            job.alone = True
        if len(unique) > 1 and not known:
            return []
        _log.error("request %s: %s", unique[0].header.request, reason)
        return self._fail(unique[0], INCOMPUTABLE)

    def _fail(self, job: _Job, failure: Failure) -> list[Any]:
        header = job.header
        failed = Failed(header.request, header.attempt, failure)
        return [failed, self._release(job, Outcome.FAILED)]

    def _end(self, job: _Job) -> list[Any]:
        matrix = finished(job.vectors, job.inputs, classes=self._model.classes)
        embedded = Embedded(
            job.header.request,
            job.header.attempt,
            count=matrix.shape[0],
            dimension=matrix.shape[1],
            prompt_eval_count=job.inputs.count,
        )
        numbers = matrix.astype("<f4").tobytes()
        return [WithNumbers(embedded, numbers), self._release(job, Outcome.FINISHED)]

    def _release(self, job: _Job, outcome: Outcome) -> Released:
        self._jobs.remove(job)
        return Released(job.header.request, job.header.attempt, outcome, 0)

    def close(self) -> None:
        """Gives the context's memory back, before the model is closed."""
        if self._context:
            self._context.close()
            self._context = None


def finished(
    vectors: list[np.ndarray[Any, Any]], inputs: EmbedInputs, *, classes: int
) -> np.ndarray[Any, Any]:
    """The rows that a client gets of what the model computed.

    A score is the first class's: where it is the only one, a logit, which becomes the probability
    that the document is relevant.
    """
    matrix = np.stack(vectors).astype(np.float64)
    if inputs.scores:
        matrix = matrix[:, :1]
        return 1 / (1 + np.exp(-np.clip(matrix, -500, 500))) if classes == 1 else matrix
    if inputs.dimensions:
        matrix = matrix[:, : inputs.dimensions]
    if inputs.normalize:
        matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), _TINY)
    return matrix
