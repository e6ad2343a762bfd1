"""One answer as its reader sees it: the text that follows from its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...protocol.messages.generation import Chunk, FinishReason, PositionLogprobs
from .detokenizer import Detokenizer
from .sequence import Key
from .stop import StopMatcher


class Pieces(Protocol):
    """What an answer must know of a vocabulary."""

    def piece(self, token: int) -> bytes:
        """The bytes that `token` adds to a text."""
        ...

    def ends_generation(self, token: int) -> bool:
        """Whether the model ends its answer by this token."""
        ...


class Answer:
    """Turns tokens into the text that may be shown, and finds where it ends.

    The text is a function of the tokens: an answer that is given the tokens of an earlier attempt
    first stands exactly where that attempt stood, and `pending` is what that one did not release
    although it could. The token by which the model ends its answer is
    one of them: it is counted and sent like the others, with whatever text was still held back.
    """

    def __init__(
        self,
        vocabulary: Pieces,
        *,
        limit: int,
        stops: StopMatcher,
        before: Sequence[int] = (),
        released: int = 0,
    ) -> None:
        """`limit` is the largest number of tokens, at least 1; `before` are those of an earlier
        attempt, and `released` the characters of text that it released with them.
        """
        self.tokens: list[int] = []
        """So far, the ending one included."""
        self.reason: FinishReason | None = None
        """Why the answer is complete; None while it is not."""
        self._vocabulary = vocabulary
        self._limit = max(limit, len(before))
        self._detokenizer = Detokenizer()
        self._stops = stops
        self.pending = ""
        """Text to release before the next token comes."""
        self._replay(before, released)

    def accept(self, token: int) -> str:
        """Appends a token; returns the text that may be shown because of it."""
        self.tokens.append(token)
        if self._vocabulary.ends_generation(token):
            self.reason = FinishReason.STOP
            return self._rest()
        text = self._stops.push(self._detokenizer.push(self._vocabulary.piece(token)))
        if self._stops.matched:
            self.reason = FinishReason.STOP
        elif len(self.tokens) >= self._limit:
            self.reason = FinishReason.LENGTH
            text += self._rest()
        return text

    def chunks(
        self, key: Key, token: int, logprobs: list[PositionLogprobs] | None = None
    ) -> list[Chunk]:
        """Appends a token; returns what its reader is sent because of it. `logprobs` are those of
        the token, in a list that is empty where it has none, or None where nobody asked.
        """
        index = len(self.tokens)
        return [Chunk(*key, index, [token], self.accept(token), logprobs)]

    def pending_chunks(self, key: Key) -> list[Chunk]:
        """What to send before the next token comes."""
        return [Chunk(*key, len(self.tokens), [], self.pending)] if self.pending else []

    def _replay(self, before: Sequence[int], released: int) -> None:
        """Takes over the tokens of an earlier attempt."""
        self.pending = "".join(map(self.accept, before))[released:]

    def _rest(self) -> str:
        """What was held back, once nothing can follow."""
        text = self._stops.push(self._detokenizer.finish())
        return text + self._stops.finish()
