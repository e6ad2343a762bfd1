"""One request in the engine: its tokens, and how far they are computed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ...protocol.messages.generation import PositionLogprobs
from .pictures import Pictures
from .rows import stretch
from .slots import Slot

if TYPE_CHECKING:
    from .context import Context, Logits

Key = tuple[str, int]
"""Request and attempt."""


class TokenChooser(Protocol):
    """Chooses the tokens of one answer."""

    def see(self, tokens: list[int]) -> None:
        """Tells which tokens stand before the answer, for penalties."""
        ...

    def sample(self, context: Context, row: int, position: int) -> int:
        """The token at `position` of the answer, from the logits of a row of the last decode.

        Raises `DecodeFailed` when these are no numbers.
        """
        ...

    def close(self) -> None:
        """Gives its memory back."""
        ...


class AnswerForm(Protocol):
    """The form that an answer must have."""

    @property
    def forced(self) -> int | None:
        """The token that comes next, whatever the model says; None where that is open."""
        ...

    def apply(self, logits: Logits) -> None:
        """Makes impossible, in place, what may not come next."""
        ...

    def accept(self, token: int) -> None:
        """Tells what came."""
        ...


@dataclass(slots=True)
class Accounts:
    """When what happened to a request, in monotonic nanoseconds. Written by the engine alone."""

    started: int = 0
    """When it was given to the engine."""
    first_token: int = 0
    """0 before there is one."""
    cached: int = 0
    """Tokens of the prompt that were not computed for it."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A request as the engine knows it.

    Reading a prompt and writing an answer are the same: `tokens[position:]` is to be computed next,
    a whole prompt at first, later exactly one token.
    """

    key: Key
    tokens: list[int]
    """Prompt and answer, of which `tokens[:position]` is in the KV cache. Negative numbers stand
    for rows of images."""
    prompt_length: int
    """Without the answer's tokens that an earlier attempt made."""
    limit: int
    """The largest number of tokens that the answer may have, at least 1."""
    context_length: int
    sampler: TokenChooser
    form: AnswerForm | None = None
    logprobs: int | None = None
    """How many alternatives to each token are told; None for no log probabilities."""
    shifts: bool = False
    """Whether the context is shifted when it is full."""
    keep: int = 0
    """Tokens at the beginning that a shift leaves in place."""
    deadline: float | None = None
    """Unix time after which nobody waits for the answer."""
    count: int = 0
    """Tokens of the answer so far, those of an earlier attempt included."""
    position: int = 0
    slot: Slot | None = None
    follows: Sequence | None = None
    """Another one that is about to compute what this prompt begins with, too."""
    shared: int = 0
    """Tokens that it begins with like the one it follows."""
    checkpoints: set[int] = field(default_factory=set[int])
    """Positions at which its state is to be kept, where a state cannot be cut later."""
    shifted: bool = False
    retried: bool = False
    """Whether it was computed anew once, because numbers were none."""
    pictures: Pictures | None = None
    """Every image of the prompt, as the model takes it; None where there is none."""
    accounts: Accounts = field(default_factory=lambda: Accounts(time.monotonic_ns()))

    @property
    def slot_number(self) -> int:
        """Only for one that has a slot."""
        assert self.slot is not None
        return self.slot.number

    @property
    def writing(self) -> bool:
        """Whether only the token that was chosen last is not computed yet."""
        return self.count > 0 and len(self.tokens) - self.position == 1

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be chosen."""
        return len(self.tokens) - self.position

    @property
    def looking(self) -> bool:
        """Whether an image is to be computed next."""
        return self.pictures is not None and self.tokens[self.position] < 0

    def until(self, most: int) -> int:
        """Tokens, about `most`, or rows of an image, that can be computed together next."""
        if self.pictures is None:
            return self.remaining
        if self.looking:
            picture, row = self.pictures.at(self.tokens[self.position])
            return len(picture.numbers) - row
        return stretch(self.tokens, self.position, most)

    def place(self, index: int) -> int:
        """The model's position of what stands at `index` of the tokens, and not within an image."""
        return index if self.pictures is None else self.pictures.place(index)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token that was chosen."""

    key: Key
    token: int
    logprobs: PositionLogprobs | None
    """None where nobody asked, and for the token that ends the answer."""
