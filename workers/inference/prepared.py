"""A request that is ready to be computed."""

from __future__ import annotations

from dataclasses import dataclass

from .answer import Answer
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request, ready: what the engine computes, and what its reader sees of that."""

    sequence: Sequence
    answer: Answer
    resumed: int
    """Tokens of the answer that an earlier attempt made."""
    prompt: list[int]
    return_context: bool

    def context(self) -> list[int] | None:
        """Prompt and answer as tokens, where the request asked for them."""
        return [*self.prompt, *self.answer.tokens] if self.return_context else None

    @property
    def made(self) -> int:
        """Tokens of the answer that this attempt made."""
        return max(len(self.answer.tokens) - self.resumed, 0)
