"""One request in the engine: its tokens, how far they are computed, what its reader has seen."""

from __future__ import annotations

from typing import Protocol

from ...protocol.messages.generation import FinishReason
from .detokenizer import Detokenizer
from .stop import StopMatcher


class Pieces(Protocol):
    """What a sequence must know of a vocabulary."""

    def piece(self, token: int) -> bytes:
        """The bytes that `token` adds to a text."""
        ...

    def ends_generation(self, token: int) -> bool:
        """Whether the model ends its answer by this token."""
        ...


class Sequence:
    """Prompt and answer of one request, and all state that follows from the answer's tokens.

    The text is a function of the tokens: a sequence that is given the tokens of an earlier attempt
    first stands exactly where that attempt stood. The token by which the model ends its answer is
    one of them: it is counted and sent like the others, with whatever text was still held back.
    `tokens[:position]` is in the KV cache.
    """

    def __init__(
        self, prompt: list[int], vocabulary: Pieces, *, limit: int, stops: StopMatcher
    ) -> None:
        """`limit` is the largest number of tokens that the answer may have, at least 1."""
        self.tokens = list(prompt)
        self.prompt_length = len(prompt)
        self.position = 0
        self.reason: FinishReason | None = None
        """Why the answer is complete; None while it is not."""
        self._vocabulary = vocabulary
        self._limit = limit
        self._detokenizer = Detokenizer()
        self._stops = stops

    @property
    def count(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def answer(self) -> list[int]:
        """The answer's tokens so far, the ending one included."""
        return self.tokens[self.prompt_length :]

    def accept(self, token: int) -> str:
        """Appends a token to the answer; returns the text that may be shown because of it."""
        self.tokens.append(token)
        if self._vocabulary.ends_generation(token):
            self.reason = FinishReason.STOP
            return self._rest()
        text = self._stops.push(self._detokenizer.push(self._vocabulary.piece(token)))
        if self._stops.matched:
            self.reason = FinishReason.STOP
        elif self.count >= self._limit:
            self.reason = FinishReason.LENGTH
            text += self._rest()
        return text

    def _rest(self) -> str:
        """What was held back, once nothing can follow."""
        text = self._stops.push(self._detokenizer.finish())
        return text + self._stops.finish()
