"""One request's answer in pieces, on its way through the frontend.

The relay feeds it what workers and the scheduler say, and carries out what follows; a dialect takes
from it what is ready for the client.

When its worker is lost, the next attempt begins with every token that came. What is said is a
function of the tokens, so what was held back for a stop text, a character or a marker comes from
the next worker, behind what was released; log probabilities that were not told wait here.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

import orjson

from ..protocol.codec import decode, encode
from ..protocol.messages.embedding import Embed
from ..protocol.messages.generation import (
    Chunk,
    Finished,
    Generate,
    GenerateBody,
    PositionLogprobs,
    ToolCall,
)
from .alignment import Alignment
from .exchange import Exchange, Phase

_PIECE_OVERHEAD = 64
"""Bytes that a waiting piece costs beside its text, so that empty-ish pieces are bounded, too."""


class Verdict(Enum):
    """What a message of the current attempt means for the stream."""

    GOOD = "good"
    GAP = "gap"
    """Tokens are missing before it: the attempt is lost."""
    OVERFLOW = "overflow"
    """The client has left more waiting than the bound allows."""


@dataclass(slots=True)
class Thinking:
    """A piece of what the model thinks. Not frozen, as `Delivery`."""

    text: str


Piece = str | Thinking | list[ToolCall]
"""A part of an answer: text, thinking, or calls that were made at once."""


@dataclass(slots=True)
class Delivery:
    """All that was ready at once: pieces in order, and the end if it has come.

    Not frozen, because there may be one for every token, and freezing costs more than the rest.
    """

    pieces: list[Piece]
    finished: Finished | None
    logprobs: list[list[PositionLogprobs]] | None = None
    """Those of each piece, where there are any."""
    mixed: bool = False
    """Whether a piece may be anything but text."""


class Stream(Exchange):
    """The answer to one request for text. It also ends by `finish`."""

    def __init__(
        self, header: Generate, body: bytes, limit: int, on_overflow: Callable[[], None]
    ) -> None:
        super().__init__(header, body)
        self.on_overflow = on_overflow
        """Cuts off a client that does not read."""
        self._limit = limit
        self._tokens = array("I")
        """All that came, four bytes each: what the next attempt begins with."""
        self._came_with = 0
        """How many of them are from earlier attempts."""
        self._first_token_at = 0
        """Monotonic nanoseconds."""
        self._context_length = 0
        """Tokens of context at the worker, as far as it said."""
        self._released = 0
        """Characters of text, characters of thinking, and calls."""
        self._pieces: list[Piece] = []
        self._mixed = False
        """Whether one of them may be anything but text."""
        self._logprobs: Alignment | None = None
        self._waiting_bytes = 0
        self._finished: Finished | None = None

    def placed(self, context_length: int) -> None:
        """Its worker says how much context it has there."""
        self._context_length = context_length

    def add(self, chunk: Chunk) -> Verdict:
        """Takes over what one engine step gave."""
        if chunk.index != len(self._tokens):
            return Verdict.GAP
        self.heard()
        self._tokens.extend(chunk.tokens)
        if not self._first_token_at:
            self._first_token_at = time.monotonic_ns()
        if chunk.logprobs is not None:
            self._logprobs = self._logprobs or Alignment(len(self._pieces))
            self._waiting_bytes += self._logprobs.add(chunk.logprobs, chunk.told)
        if chunk.thinking or chunk.calls:
            self._add_mixed(chunk)
        elif text := chunk.text:  # for nearly every token: no call
            self._released += len(text)
            self._pieces.append(text)
            if self._logprobs:
                self._logprobs.release(text)
            self._waiting_bytes += len(text.encode()) + _PIECE_OVERHEAD
        else:
            return Verdict.GOOD
        self._wake()
        return Verdict.OVERFLOW if self._waiting_bytes > self._limit else Verdict.GOOD

    def _add_mixed(self, chunk: Chunk) -> None:
        """Takes over pieces of any kind, in the order that chunks have."""
        self._mixed = True
        if chunk.thinking:
            self._add_piece(Thinking(chunk.thinking), chunk.thinking)
        if chunk.text:
            self._add_piece(chunk.text, chunk.text)
        if chunk.calls:
            self._released += len(chunk.calls)
            self._pieces.append(chunk.calls)
            if self._logprobs:
                self._logprobs.release("")
            self._waiting_bytes += sum(map(_size, chunk.calls))

    def _add_piece(self, piece: Piece, text: str) -> None:
        self._released += len(text)
        self._pieces.append(piece)
        if self._logprobs:
            self._logprobs.release(text)
        self._waiting_bytes += len(text.encode()) + _PIECE_OVERHEAD

    def finish(self, finished: Finished) -> Verdict:
        """The answer is complete, unless tokens are missing from it."""
        if finished.eval_count != len(self._tokens):
            return Verdict.GAP
        if self._logprobs and self._logprobs.remains:
            # Those of markers behind the last piece: as in Ollama, they come without a text.
            self._pieces.append("")
            self._logprobs.release("")
        self._end()
        self._finished = self._accounted(finished) if self._came_with else finished
        return Verdict.GOOD

    def _accounted(self, finished: Finished) -> Finished:
        """The end of an answer of several attempts, as if it were one with a pause in it.

        A worker knows only of its own part; so reading lasts from the beginning of the attempt that
        brought the first token until that token, writing from there to the end, by our clock.
        """
        began, ended = self.started_at or self._first_token_at, self.finished_at or 0
        return replace(
            finished,
            prompt_eval_duration=max(self._first_token_at - began, 0),
            eval_duration=max(ended - self._first_token_at, 0),
        )

    def try_again(self, *, died: bool = False, alone: bool = False) -> bool:
        """Begins the next attempt, which goes on behind all tokens that came."""
        if not super().try_again(died=died, alone=alone):
            return False
        self._came_with = len(self._tokens)
        if self._tokens:
            body: GenerateBody = decode(self.body, limit=len(self.body))
            self.body = encode(replace(body, tokens=self._tokens.tolist(), released=self._released))
        return True

    @property
    def _got_further(self) -> bool:
        return len(self._tokens) > self._came_with

    @property
    def _began_before(self) -> bool:
        return self._came_with > 0

    def _next_header(self, suspect: bool) -> Generate | Embed:
        header = super()._next_header(suspect)
        if self._tokens and self._context_length:
            # Where the prompt was cut and the context is shifted must not change in mid-answer.
            header = replace(header, context_length=self._context_length)
        return header

    async def take(self) -> Delivery:
        """All that is ready, as soon as something is. For one reader at a time.

        Raises the `PronkError` that ended the stream, once the text before it has been taken.
        """
        while not self._pieces and self.phase is not Phase.ENDED:
            await self._awake()
        pieces, self._pieces, self._waiting_bytes = self._pieces, [], 0
        if self._error and not pieces:
            raise self._error
        logprobs = self._logprobs.take() if self._logprobs else None
        mixed, self._mixed = self._mixed, False
        return Delivery(pieces, self._finished, logprobs, mixed)


def _size(call: ToolCall) -> int:
    return len(orjson.dumps((call.name, call.arguments, call.id))) + _PIECE_OVERHEAD
