"""A replica without a model: it says again what it was told, for load tests of everything else.

Whatever lies around an engine can be measured and broken with it as with any other replica, at a
speed that no model reaches, or at a pace; and every answer is known beforehand. A token is four
characters of the last message, or of the prompt. With `num_predict` the text is repeated up to
exactly so many tokens; without it, it is said once and ended by a token of its own. Options of
sampling change nothing; stop texts, log probabilities and resumption work as with a model.

It computes nothing, so it lives on the event loop alone: each step, one token for every request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..protocol.codec import MalformedMessage, decode
from ..protocol.deadline import deadline_exceeded, is_over
from ..protocol.errors import Code, PronkError
from ..protocol.messages.embedding import Embed
from ..protocol.messages.failure import Failure
from ..protocol.messages.fleet import LoadedModel
from ..protocol.messages.generation import (
    Cancel,
    Chunk,
    Failed,
    Finished,
    FinishReason,
    Generate,
    GenerateBody,
    Kind,
    PositionLogprobs,
    TokenLogprob,
)
from ..protocol.messages.placement import Load, Loaded, Outcome, Released, SetThreads
from .inference.stop import StopMatcher

_log = logging.getLogger(__name__)

LETTERS = 4
"""Characters of a token."""

SLOTS = 256
"""Requests at a time where nobody says how many."""

PACE = "tokens_per_second"
"""The model's parameter for how fast each request gets its tokens; 0 for as fast as they go."""

_PAUSE = 0.005
"""Seconds between steps while a frontend has not taken the last one."""

_CATCH_UP = 0.05
"""Seconds of steps that are made up for when the process came too late to its time."""

_Key = tuple[str, int]
"""Request and attempt."""


class Recital:
    """One answer: a text said again, token by token. It depends on nothing but its arguments."""

    def __init__(
        self, text: str, *, limit: int | None = None, stops: StopMatcher, before: int = 0
    ) -> None:
        """`limit` is the number of tokens, at least 1; None for the text once. `before` tokens of
        it have been said by an earlier attempt.
        """
        self.period = -(-len(text) // LETTERS)
        """Tokens of the text."""
        self.count = 0
        """Tokens so far."""
        self.reason: FinishReason | None = None
        """Why the answer is complete; None while it is not."""
        self._text = text
        self._limit = limit
        self._end = self.period if limit is None or not text else None
        self._stops = stops
        for _ in range(before):
            if self.reason is None:
                self.advance()

    def advance(self) -> tuple[int, str, str]:
        """The next token, the text that it is, and the text that may be shown because of it."""
        if self.count == self._end:
            self.count += 1
            self.reason = FinishReason.STOP
            return self.period, "", self._stops.finish()
        token = self.count % self.period
        piece = self._text[token * LETTERS : (token + 1) * LETTERS]
        shown = self._stops.push(piece)
        self.count += 1
        if self._stops.matched:
            self.reason = FinishReason.STOP
        elif self.count == self._limit:
            self.reason = FinishReason.LENGTH
            shown += self._stops.finish()
        return token, piece, shown

    def tokens(self) -> list[int]:
        """All of them so far."""
        return [n if n == self._end else n % self.period for n in range(self.count)]


@dataclass(slots=True)
class _Request:
    """A request from its first step to its last."""

    header: Generate
    body: GenerateBody
    recital: Recital
    started: int = field(default_factory=time.monotonic_ns)
    first_token: int = 0
    """Monotonic nanoseconds; 0 before there is one."""


class EchoReplica:
    """Takes requests as `inference.replica.Replica` does, and answers as it does.

    `post(messages)` returns whether frontends keep up with what they are sent; while they do not,
    steps become rare.
    """

    alive = True

    def __init__(self, load: Load, max_body: int, post: Callable[[list[Any]], bool]) -> None:
        self.steps = 0
        """Changes as long as there is progress."""
        self._load = load
        self._max_body = max_body
        self._post = post
        self._loop = asyncio.get_running_loop()
        pace = load.model.parameters.get(PACE, 0)
        self._interval = 1 / pace if pace else 0.0
        self._due = 0.0
        """When the last step had to be, in the loop's time."""
        self._next: asyncio.Handle | None = None
        self._arrived: dict[_Key, tuple[Generate | Embed, bytes]] = {}
        self._requests: dict[_Key, _Request] = {}
        self._loop.call_soon(self._loaded, time.monotonic_ns())

    def submit(self, header: Generate | Embed, frame: bytes) -> None:
        """Takes a request with its body, once the model is loaded."""
        self._arrived[header.request, header.attempt] = header, frame
        if self._next is None:
            self._due = self._loop.time()
            self._plan()

    def cancel(self, cancel: Cancel) -> None:
        """Ends a request; `Released` confirms it."""
        key = (cancel.request, cancel.attempt)
        made = 0
        if request := self._requests.pop(key, None):
            made = _made(request)
        elif self._arrived.pop(key, None) is None:
            return
        # Not at once: whoever cancels may be sending what the last step brought.
        self._loop.call_soon(self._post, [Released(*key, Outcome.CANCELLED, made)])

    def set_threads(self, command: SetThreads) -> None:
        """Changes nothing: here is nothing that computes."""

    def _loaded(self, began: int) -> None:
        model = self._load.model
        slots = self._load.parallel or SLOTS
        length = self._load.context_length
        loaded = LoadedModel(model.name, model.digest, length, slots=slots, size=0, size_vram=0)
        self._post([Loaded(loaded, time.monotonic_ns() - began)])

    def _plan(self, *, keeps_up: bool = True) -> None:
        """Has the next step done when its time comes."""
        if not keeps_up:
            self._due = self._loop.time() + max(self._interval, _PAUSE)
        elif self._interval:
            self._due = max(self._due + self._interval, self._loop.time() - _CATCH_UP)
        else:
            self._next = self._loop.call_soon(self._step)
            return
        self._next = self._loop.call_at(self._due, self._step)

    def _step(self) -> None:
        """One token for every request."""
        self._next = None
        self.steps += 1
        messages: list[Any] = []
        for key, (header, frame) in self._arrived.items():
            messages += self._begin(key, header, frame)
        self._arrived.clear()
        now, unix = time.monotonic_ns(), time.time()
        ended: list[_Key] = []
        for key, request in self._requests.items():
            recital = request.recital
            if recital.reason is None:
                if is_over(request.header.deadline, unix):
                    messages.append(Failed(*key, Failure.of(deadline_exceeded())))
                    messages.append(Released(*key, Outcome.FAILED, _made(request)))
                    ended.append(key)
                    continue
                index = recital.count
                token, piece, shown = recital.advance()
                messages.append(Chunk(*key, index, [token], shown, self._told(request, piece)))
                request.first_token = request.first_token or now
            if recital.reason:
                messages.append(_finished(request, recital.reason, now))
                messages.append(Released(*key, Outcome.FINISHED, _made(request)))
                ended.append(key)
        for key in ended:
            del self._requests[key]
        keeps_up = self._post(messages)
        if self._requests:
            self._plan(keeps_up=keeps_up)

    def _begin(self, key: _Key, header: Generate | Embed, frame: bytes) -> list[Any]:
        """Takes a request among those that are answered; else says why not."""
        try:
            if isinstance(header, Embed):
                raise PronkError(Code.INVALID_REQUEST, "the echo model makes no vectors")
            body = decode(frame, limit=self._max_body)
            if not isinstance(body, GenerateBody):
                raise MalformedMessage(f"a body is no {type(body).__name__}")
            self._requests[key] = _Request(header, body, self._recital(header, body))
        except PronkError as error:
            failure = Failure.of(error)
        except MalformedMessage as error:
            _log.error("request %s: malformed body: %s", key[0], error)
            failure = Failure(Code.INTERNAL, "the request was damaged on its way; try again")
        else:
            return []
        return [Failed(*key, failure), Released(*key, Outcome.FAILED, 0)]

    def _recital(self, header: Generate, body: GenerateBody) -> Recital:
        if body.constraint:
            raise PronkError(
                Code.INVALID_REQUEST, "format: the echo model says what it was told and no other"
            )
        text = body.prompt
        if body.kind is Kind.CHAT:
            text = body.messages[-1].content if body.messages else ""
        length = min(self._load.context_length, header.context_length or 2**63)
        most = max(length - 1, 1) * LETTERS
        if len(text) > most and not body.truncate:
            raise PronkError(
                Code.INVALID_REQUEST,
                f"the prompt has {-(-len(text) // LETTERS)} tokens, but the context holds {length};"
                " shorten it or ask for a larger num_ctx",
            )
        wanted = body.options.num_predict
        return Recital(
            text[:most],
            limit=wanted if wanted and wanted > 0 else None,
            stops=StopMatcher(body.options.stop or ()),
            before=len(body.tokens),
        )

    @staticmethod
    def _told(request: _Request, piece: str) -> list[PositionLogprobs] | None:
        """What is known of a token's probability: it was certain."""
        if request.body.logprobs is None:
            return None
        return [PositionLogprobs(TokenLogprob(piece.encode(), 0.0), [])] if piece else []


def _made(request: _Request) -> int:
    """Tokens of the answer that this attempt made."""
    return max(request.recital.count - len(request.body.tokens), 0)


def _finished(request: _Request, reason: FinishReason, now: int) -> Finished:
    header, body, recital = request.header, request.body, request.recital
    first_token = request.first_token or now
    context = [*body.context, *range(recital.period), *recital.tokens()]
    return Finished(
        header.request,
        header.attempt,
        reason,
        eval_count=recital.count,
        eval_duration=now - first_token,
        prompt_eval_count=len(body.context) + recital.period,
        prompt_eval_duration=first_token - request.started,
        context=context if body.return_context else None,
    )
