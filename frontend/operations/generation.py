"""Generating text: from a validated request to a stream of pieces with its accounts at the end."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from uuid import uuid4

from ...protocol.codec import encode
from ...protocol.deadline import deadline_after
from ...protocol.errors import Code, PronkError
from ...protocol.messages.generation import (
    Caller,
    Evict,
    Finished,
    FinishReason,
    Generate,
    GenerateBody,
    PositionLogprobs,
    Preload,
)
from ..relay import Relay
from ..stream import Piece, Stream
from .models import Models
from .offload import NO_WISH, Offload
from .policy import require_capabilities
from .prefix import prefix_chain
from .prompts import check_bounds, estimate_cost, prompt_parts
from .request import GenerationRequest

FOR_EVER = 10 * 365 * 86400.0
"""Seconds of keep_alive from which on nobody counts any more."""


@dataclass(frozen=True, slots=True)
class Completion:
    """How a generation ended, and its accounts. Durations are nanoseconds.

    `total_duration` is never less than the sum of the three others.
    """

    reason: FinishReason
    total_duration: int
    load_duration: int
    """From the acceptance of the request until it left the queue, loading included."""
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int
    context: list[int] | None


@dataclass(slots=True)
class Output:
    """All that was ready at once, and the end if it has come. Not frozen, as `Delivery`."""

    pieces: list[Piece]
    completion: Completion | None
    logprobs: list[list[PositionLogprobs]] | None = None
    """Those of each piece, where the request asked for them."""
    mixed: bool = False
    """Whether a piece may be anything but text."""


class Generation:
    """A generation under way. Leaving its `with` block before its end cancels it."""

    def __init__(self, relay: Relay, stream: Stream, accepted_at: int) -> None:
        self._relay = relay
        self._stream = stream
        self._accepted_at = accepted_at

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._relay.abandon(self._stream)

    async def take(self) -> Output:
        """What is ready, as soon as something is. Nothing follows an output with a completion.

        Raises the `PronkError` that ended the generation.
        """
        delivery = await self._stream.take()
        finished = delivery.finished
        completion = self._account(finished) if finished else None
        return Output(delivery.pieces, completion, delivery.logprobs, delivery.mixed)

    def _account(self, finished: Finished) -> Completion:
        ended_at = self._stream.finished_at or time.monotonic_ns()
        started_at = self._stream.started_at or ended_at
        # The worker's clock is not ours: what it measured stands, and ours gives way.
        working = finished.prompt_eval_duration + finished.eval_duration
        total = max(ended_at - self._accepted_at, working)
        return Completion(
            reason=finished.reason,
            total_duration=total,
            load_duration=min(started_at - self._accepted_at, total - working),
            prompt_eval_count=finished.prompt_eval_count,
            prompt_eval_duration=finished.prompt_eval_duration,
            eval_count=finished.eval_count,
            eval_duration=finished.eval_duration,
            context=finished.context,
        )


class Generations:
    """Starting generations, and having models loaded for them or unloaded."""

    def __init__(self, models: Models, relay: Relay, timeout: float = 0.0) -> None:
        """`timeout` is the longest time in seconds that a request may take; 0 for no limit."""
        self._models = models
        self._relay = relay
        self._timeout = timeout

    async def start(
        self,
        caller: Caller,
        request: GenerationRequest,
        on_overflow: Callable[[], None] = lambda: None,
    ) -> Generation:
        """Submits a request. `on_overflow` is called when its reader fell too far behind.

        Raises `PronkError`: the model is unknown or cannot do this, the request is too large, or
        nothing can be taken now.
        """
        accepted_at = time.monotonic_ns()
        check_bounds(request)
        deadline = deadline_after(self._timeout)
        model = await self._models.resolve(caller, request.model)
        require_capabilities(request.model, model, ("completion", *request.needs))
        parts = prompt_parts(request)
        header = Generate(
            request=uuid4().hex,
            attempt=1,
            model=model.name,
            digest=model.digest,
            caller=caller,
            frontend=self._relay.incarnation,
            reply_to=self._relay.endpoint,
            reply_to_tcp=self._relay.tcp_endpoint,
            seed=resolve_seed(request.seed),
            cost=estimate_cost(request, parts),
            keep_alive=bounded_keep_alive(request.keep_alive),
            context_length=request.context_length,
            num_gpu=request.offload.num_gpu,
            main_gpu=request.offload.main_gpu,
            deadline=deadline,
            prefix=prefix_chain(model.digest, parts),
        )
        body = GenerateBody(
            kind=request.kind,
            options=request.options,
            messages=list(request.messages),
            prompt=request.prompt,
            system=request.system,
            suffix=request.suffix,
            template=request.template,
            raw=request.raw,
            truncate=request.truncate,
            shift=request.shift,
            constraint=request.constraint,
            context=list(request.context),
            return_context=request.return_context,
            logprobs=request.logprobs,
            any_seed=request.seed is None,
            tools=list(request.tools),
            tool_choice=request.tool_choice,
            tool=request.tool,
            think=request.think,
            reasoning_budget=request.reasoning_budget,
            images=list(request.images),
        )
        stream = self._relay.submit(header, encode(body), on_overflow)
        return Generation(self._relay, stream, accepted_at)

    async def preload(
        self,
        caller: Caller,
        name: str,
        *,
        keep_alive: float | None = None,
        context_length: int | None = None,
        offload: Offload = NO_WISH,
    ) -> None:
        """Returns when the model is ready for requests. Raises `PronkError` when it cannot be."""
        model = await self._models.resolve(caller, name)
        require_capabilities(name, model, ("completion",))
        await self._relay.preload(
            Preload(
                request=uuid4().hex,
                model=model.name,
                digest=model.digest,
                caller=caller,
                keep_alive=bounded_keep_alive(keep_alive),
                context_length=context_length,
                num_gpu=offload.num_gpu,
                main_gpu=offload.main_gpu,
            )
        )

    async def evict(self, caller: Caller, name: str) -> None:
        """Has the model unloaded as soon as it is idle; no matter if it was not loaded."""
        model = await self._models.resolve(caller, name)
        await self._relay.evict(Evict(uuid4().hex, model.digest, caller))


def resolve_seed(seed: int | None) -> int:
    """A seed of 32 bits: the given one's lower half, or a random one for None and negatives.

    Resolved once, before the first attempt, so that a later attempt draws the same tokens.
    """
    return secrets.randbits(32) if seed is None or seed < 0 else seed & 0xFFFFFFFF


def bounded_keep_alive(seconds: float | None) -> float | None:
    """A stay in seconds as messages carry it: a very long one is for ever.

    Raises `PronkError` when it is not finite.
    """
    if seconds is not None and not math.isfinite(seconds):
        raise PronkError(Code.INVALID_REQUEST, "keep_alive: is not a finite duration")
    if seconds is None or seconds <= FOR_EVER:
        return seconds
    return -1.0
