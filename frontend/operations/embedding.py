"""Turning texts into vectors, and ranking documents: long lists in small jobs, answers in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import uuid4

from ...protocol.codec import encode
from ...protocol.deadline import deadline_after
from ...protocol.errors import Code, PronkError
from ...protocol.messages.embedding import Embed, EmbedBody
from ...protocol.messages.generation import Caller, Preload
from ...protocol.messages.library import ModelResolved
from ..exchange import Answer
from ..relay import Relay
from .generation import bounded_keep_alive
from .models import Models
from .offload import NO_WISH, Offload
from .prompts import BYTES_PER_TOKEN

MAX_INPUTS = 4096
"""Texts in one request: what their vectors take is held until the last of them is there."""

JOB_INPUTS = 64
JOB_BYTES = 256 * 1024
"""Bounds of one job, in texts and in bytes of UTF-8: a longer text is a job of its own. A worker is
free for others after each, and what a job's answer takes stays far below a message's limit."""

WINDOW = 2
"""Jobs of one request that are under way at a time: the next one waits at the worker when one is
done, and a long list never holds more slots."""


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """A request for vectors, or with a `query` for scores. See `EmbedBody` for the fields."""

    model: str
    inputs: tuple[str, ...]
    query: str | None = None
    truncate: bool = True
    normalize: bool = True
    dimensions: int | None = None
    context_length: int | None = None
    offload: Offload = NO_WISH
    keep_alive: float | None = None


@dataclass(slots=True)
class Embedding:
    """The vectors of all inputs, and the accounts. Durations are nanoseconds."""

    blocks: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    """Vectors in the order of the inputs: how many numbers each has, and the numbers of some of
    them as little-endian 32-bit floats."""
    prompt_eval_count: int = 0
    total_duration: int = 0
    load_duration: int = 0
    """From the acceptance of the request until its first job left the queue, loading included."""


class Embeddings:
    """Answering requests for vectors and scores.

    No capability is asked for: any model that reads text can turn it into a vector, and only its
    worker knows whether it can rank.
    """

    def __init__(self, models: Models, relay: Relay, timeout: float = 0.0) -> None:
        """`timeout` in seconds is how long a request may take; 0 for as long as it takes."""
        self._models = models
        self._relay = relay
        self._timeout = timeout

    async def embed(self, caller: Caller, request: EmbeddingRequest) -> Embedding:
        """The vectors, or the scores, of all inputs. Without any input the model is loaded.

        Whoever cancels this cancels what is under way. Raises `PronkError`: there are too many
        inputs, the model is unknown or cannot do this, nothing can be taken now, or an input is too
        long or cannot be computed.
        """
        accepted_at = time.monotonic_ns()
        if len(request.inputs) > MAX_INPUTS:
            raise PronkError(
                Code.INVALID_REQUEST,
                f"{len(request.inputs)} texts are more than the {MAX_INPUTS} that one request may "
                "have; send several requests",
            )
        model = await self._models.resolve(caller, request.model)
        keep_alive = bounded_keep_alive(request.keep_alive)
        embedding = Embedding()
        if not request.inputs:
            await self._relay.preload(
                Preload(
                    request=uuid4().hex,
                    model=model.name,
                    digest=model.digest,
                    caller=caller,
                    keep_alive=keep_alive,
                    context_length=request.context_length,
                    num_gpu=request.offload.num_gpu,
                    main_gpu=request.offload.main_gpu,
                )
            )
            embedding.load_duration = time.monotonic_ns() - accepted_at
        else:
            await self._run(caller, request, model, keep_alive, embedding)
            embedding.load_duration = max(0, embedding.load_duration - accepted_at)
        embedding.total_duration = time.monotonic_ns() - accepted_at
        return embedding

    async def _run(
        self,
        caller: Caller,
        request: EmbeddingRequest,
        model: ModelResolved,
        keep_alive: float | None,
        embedding: Embedding,
    ) -> None:
        """Fills `embedding`; its `load_duration` becomes the time at which the first job began."""
        under_way: deque[Answer] = deque()
        deadline = deadline_after(self._timeout)
        jobs = split(request.inputs)
        try:
            while True:
                while len(under_way) < WINDOW and (job := next(jobs, None)):
                    under_way.append(
                        self._submit(caller, request, model, keep_alive, deadline, *job)
                    )
                if not under_way:
                    return
                answer = under_way[0]
                embedded, numbers = await answer.take()
                under_way.popleft()
                if not embedding.blocks:
                    embedding.load_duration = answer.started_at or 0
                embedding.blocks.append((embedded.dimension, numbers))
                embedding.prompt_eval_count += embedded.prompt_eval_count
        finally:
            for answer in under_way:
                self._relay.abandon(answer)

    def _submit(
        self,
        caller: Caller,
        request: EmbeddingRequest,
        model: ModelResolved,
        keep_alive: float | None,
        deadline: float | None,
        first: int,
        inputs: list[str],
    ) -> Answer:
        header = Embed(
            request=uuid4().hex,
            attempt=1,
            model=model.name,
            digest=model.digest,
            caller=caller,
            frontend=self._relay.incarnation,
            reply_to=self._relay.endpoint,
            reply_to_tcp=self._relay.tcp_endpoint,
            cost=sum(size_of(text) // BYTES_PER_TOKEN + 1 for text in inputs),
            keep_alive=keep_alive,
            context_length=request.context_length,
            num_gpu=request.offload.num_gpu,
            main_gpu=request.offload.main_gpu,
            deadline=deadline,
        )
        body = EmbedBody(
            inputs=inputs,
            first=first,
            query=request.query,
            truncate=request.truncate,
            normalize=request.normalize,
            dimensions=request.dimensions,
        )
        return self._relay.submit_embed(header, encode(body))


def split(inputs: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """The inputs in jobs, each with the position of its first one."""
    first, job, size = 0, list[str](), 0
    for position, text in enumerate(inputs):
        bytes_ = size_of(text)
        if job and (len(job) == JOB_INPUTS or size + bytes_ > JOB_BYTES):
            yield first, job
            first, job, size = position, [], 0
        job.append(text)
        size += bytes_
    if job:
        yield first, job


def size_of(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())
