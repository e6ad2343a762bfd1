"""When a registry that failed is asked again, and when it is given up."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Terms:
    """How long a pull bears with a registry and with the network. Times in seconds."""

    tries: int = 8
    """Failures in a row, without progress between them, after which it ends."""
    first_pause: float = 0.5
    """Before the second try; each further one waits twice as long as the one before."""
    longest_pause: float = 15.0
    longest_wish: float = 120.0
    """Longest pause that a registry may ask for. One that asks for more is given up: whoever waits
    is told, instead of looking at a line that does not move."""
    stall: float = 30.0
    """Time without a byte after which a connection counts as broken."""
    progress: int = 64 * 1024
    """Bytes that count as progress. Fewer would let a registry that sends byte after byte go on for
    ever."""


class Patience:
    """Counts what fails in a row. One for each blob."""

    def __init__(self, terms: Terms, dice: random.Random | None = None) -> None:
        self._terms = terms
        self._dice = dice or random.Random()
        self._failures = 0
        self._best = 0

    def progressed(self, done: int) -> None:
        """So many bytes are there by now."""
        if done >= self._best + self._terms.progress:
            self._best = done
            self._failures = 0

    def failed(self, wish: float | None = None) -> float | None:
        """Seconds to wait before the next try, or None where there should be none.

        `wish` is how long the registry asked to be left alone. Pauses are drawn from between half
        and the whole of what is due, so that those who failed together do not return together.
        """
        self._failures += 1
        if self._failures >= self._terms.tries:
            return None
        if wish is not None and wish > self._terms.longest_wish:
            return None
        due = min(self._terms.first_pause * 2 ** (self._failures - 1), self._terms.longest_pause)
        return max(wish or 0.0, due * self._dice.uniform(0.5, 1.0))
