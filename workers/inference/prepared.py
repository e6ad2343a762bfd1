"""A request that is ready to be computed."""

from __future__ import annotations

from dataclasses import dataclass

from .answer import Answer
from .rows import tokens_alone
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request, ready: what the engine computes, and what its reader sees of that."""

    sequence: Sequence
    answer: Answer
    resumed: int
    """Tokens of the answer that an earlier attempt made."""
    prompt: list[int]
    """Negative numbers are rows of images."""
    return_context: bool

    def context(self) -> list[int] | None:
        """Prompt and answer as tokens, where the request asked for them; images are none."""
        return [*tokens_alone(self.prompt), *self.answer.tokens] if self.return_context else None

    @property
    def made(self) -> int:
        """Tokens of the answer that this attempt made."""
        return max(len(self.answer.tokens) - self.resumed, 0)
