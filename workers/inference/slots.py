"""Which slot a sequence gets, and what of its prompt need not be computed again.

Pure bookkeeping: the engine carries out on the KV caches what is decided here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from .batching import GRID

WORTH_KEEPING = GRID
"""Tokens from which on keeping a finished sequence beats computing it again."""

T = TypeVar("T")


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    # Lists compare in C: bisecting costs less than a loop up to the first difference.
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


@dataclass(slots=True, eq=False)
class Slot:
    """One sequence's place in the context."""

    number: int
    tokens: list[int] = field(default_factory=list[int])
    """What its KV cache holds while nobody uses it."""
    taken: bool = False
    used: int = 0
    """When it was given back last, on any clock that grows."""


def choose_slot(
    slots: Iterable[Slot], prompt: list[int], cuttable: bool
) -> tuple[Slot, int] | None:
    """A free slot for a prompt, and how many of the slot's tokens it begins with.

    The slot with the longest common prefix is used as it stands, unless that would destroy more
    than it saves; then the one that is empty, or was used least recently, is given away. With
    `cuttable` false only all of a slot's tokens can be gone on from. None when all are taken.
    """
    free = [slot for slot in slots if not slot.taken]
    if not free:
        return None
    best, reused = free[0], 0
    for slot in free:
        common = common_prefix(slot.tokens, prompt)
        if not cuttable and common < len(slot.tokens):
            continue
        if common > reused:
            best, reused = slot, common
    if reused >= WORTH_KEEPING and 2 * reused >= len(best.tokens):
        return best, reused
    victim = min(free, key=lambda slot: (bool(slot.tokens), slot.used, slot.number))
    common = common_prefix(victim.tokens, prompt)
    return victim, common if cuttable or common == len(victim.tokens) else 0


@dataclass(slots=True, eq=False)
class _Kept(Generic[T]):
    tokens: list[int]
    state: T
    size: int


class KeptPrefixes(Generic[T]):
    """Finished sequences beyond the slots, as far as the memory goes; the least recently used one
    is forgotten first.
    """

    def __init__(self, limit: int, *, cuttable: bool) -> None:
        """`limit` in bytes. With `cuttable` false a state serves only what goes on from all of it,
        and not from a part.
        """
        self.limit = limit
        self._cuttable = cuttable
        self._kept: OrderedDict[int, _Kept[T]] = OrderedDict()
        self._next = 0
        self.size = 0
        """Bytes that are kept."""

    def keep(self, tokens: list[int], state: T, size: int) -> None:
        """Keeps a state of `size` bytes, unless it is over the limit by itself."""
        if size > self.limit:
            return
        for key, kept in list(self._kept.items()):
            begins = kept.tokens == tokens[: len(kept.tokens)]
            if begins and (self._cuttable or len(kept.tokens) == len(tokens)):
                self._forget(key)  # the new one is as good
        self._kept[self._next] = _Kept(tokens, state, size)
        self._next += 1
        self.size += size
        while self.size > self.limit:
            self._forget(next(iter(self._kept)))

    def _forget(self, key: int) -> None:
        self.size -= self._kept.pop(key).size

    def longest(self, prompt: list[int]) -> tuple[int, T] | None:
        """The state with the longest common prefix, and that prefix's length."""
        best, reused = None, 0
        for key, kept in self._kept.items():
            common = common_prefix(kept.tokens, prompt)
            if common > reused and (self._cuttable or common == len(kept.tokens)):
                best, reused = key, common
        if best is None:
            return None
        self._kept.move_to_end(best)
        return reused, self._kept[best].state

    def holds(self, tokens: list[int]) -> bool:
        """Whether a kept state serves all that one of these tokens would."""
        return any(
            kept.tokens[: len(tokens)] == tokens
            and (self._cuttable or len(kept.tokens) == len(tokens))
            for kept in self._kept.values()
        )
