"""What was seen lately, within a bound: which beginnings of prompts a worker has read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

LONGEST_CHAIN = 256
"""Hashes in a chain. What two prompts share beyond as many messages decides no placement."""

MOST_PREFIXES = 4096
"""Hashes that are remembered of one worker: more than its cache can hold conversations."""


class Recent:
    """A set of hashes that forgets the one that was added least recently."""

    def __init__(self, bound: int = MOST_PREFIXES) -> None:
        self._bound = bound
        self._hashes: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, item: object) -> bool:
        return item in self._hashes

    def __iter__(self) -> Iterator[bytes]:
        """The least recent one first."""
        return iter(self._hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, hashes: Iterable[bytes]) -> list[bytes]:
        """Adds them as the most recent ones; returns what had to be forgotten for them."""
        for item in hashes:
            self._hashes[item] = None
            self._hashes.move_to_end(item)
        forgotten: list[bytes] = []
        while len(self._hashes) > self._bound:
            forgotten.append(self._hashes.popitem(last=False)[0])
        return forgotten
