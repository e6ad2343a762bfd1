"""Which class a caller belongs to, and so how much weight its requests have. Pure.

There is a weight and no strict precedence: with a weight of 100 the others wait almost as they
would behind a strict class, and yet nobody who uses this host can stop the others for good.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from ...protocol.limits import CallerClass

USUAL_WEIGHT = 1.0
"""Of callers whom no class names."""

_WILD = ("*", "?", "[")


class CallerWeights:
    """The classes of the settings, looked up by caller."""

    def __init__(self, classes: Mapping[str, CallerClass]) -> None:
        self._exact: dict[str, float] = {}
        self._patterns: list[tuple[str, float]] = []
        for of_class in classes.values():
            for caller in of_class.callers:
                if any(mark in caller for mark in _WILD):
                    self._patterns.append((caller, of_class.weight))
                else:
                    self._exact.setdefault(caller, of_class.weight)

    def of(self, caller: str) -> float:
        """A caller's weight: of the class that names it, else of the first one with a pattern for
        it in the order of the file, else the usual one.
        """
        weight = self._exact.get(caller)
        if weight is not None:
            return weight
        matching = (weight for pattern, weight in self._patterns if fnmatchcase(caller, pattern))
        return next(matching, USUAL_WEIGHT)
