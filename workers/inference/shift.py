"""What is left out when a context is full, and how long an answer may become, as in Ollama.

Pure arithmetic on numbers of tokens, so that a worker that takes over an answer arrives at the same
context as the one that began it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .rows import whole_before, whole_behind

DEFAULT_KEEP = 4
"""`num_keep` where nobody says otherwise."""

LONGEST_ANSWER = 10
"""Contexts that an answer without a bound may fill one after the other."""


@dataclass(frozen=True, slots=True)
class Shift:
    """The first `keep` tokens of a context stay, `discard` behind them go, the others move up."""

    keep: int
    discard: int


def kept(num_keep: int | None, prompt_length: int, context_length: int, *, adds_bos: bool) -> int:
    """How many tokens at the beginning of a prompt stay whatever happens.

    Negative for all of the prompt. The beginning token is not counted, and one token of the context
    is always free to go.
    """
    if num_keep is not None and num_keep < 0:
        keep = prompt_length
    else:
        keep = (DEFAULT_KEEP if num_keep is None else num_keep) + adds_bos
    return max(min(keep, context_length - 1), 0)


def prompt_limit(context_length: int, keep: int) -> int:
    """The length of a prompt that had to be cut: half of what is not kept is for the answer."""
    return context_length - _half(context_length, keep)


def plan_shift(length: int, context_length: int, keep: int) -> Shift:
    """How to make room in a context that holds `length` tokens and takes no more.

    Afterwards half of what is not kept is free. `keep` comes from `kept`; at least one token goes.
    """
    discard = _half(context_length, keep) - (context_length - length)
    return Shift(keep, max(min(discard, length - keep), 1))


def without_parts(shift: Shift, held: Sequence[int]) -> Shift:
    """A shift of a context that holds these tokens and images, which leaves no part of an image."""
    keep = whole_before(held, shift.keep)
    return Shift(keep, whole_behind(held, shift.keep + shift.discard) - keep)


def _half(context_length: int, keep: int) -> int:
    return max((context_length - keep) // 2, 1)


def in_context(
    tokens: Sequence[int], prompt_length: int, context_length: int, keep: int
) -> list[int]:
    """What a context holds once the answer in `tokens[prompt_length:]` was computed token by token.

    The context is shifted whenever a token finds it full. The prompt must fit into it.
    """
    held = list(tokens[:prompt_length])
    done = prompt_length
    while done < len(tokens):
        if len(held) >= context_length:
            shift = without_parts(plan_shift(len(held), context_length, keep), held)
            del held[shift.keep : shift.keep + shift.discard]
        more = tokens[done : done + context_length - len(held)]
        held += more
        done += len(more)
    return held


def answer_limit(
    num_predict: int | None, context_length: int, prompt_length: int, shift: bool
) -> int:
    """The largest number of tokens that an answer may have, at least 1.

    Without `shift`, and with `num_predict` −2, that is what the context has room for; else a bound
    of `num_predict`, but never more than ten contexts: a model that cannot end would not end.
    """
    room = context_length - prompt_length
    longest = LONGEST_ANSWER * context_length if shift and num_predict != -2 else room
    if num_predict is not None and num_predict > 0:
        longest = min(longest, num_predict)
    return max(longest, 1)
