"""How calls ended, for those who ask once more because the answer has not reached them yet."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

KEPT_SECONDS = 30.0
"""Longer than an asker repeats a question that was answered."""
_MOST = 1024

Caller = tuple[str, str]
"""A peer and its call."""


class Outcomes:
    """The last answers, within a bound. The ones that were given first are forgotten first."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Caller, tuple[float, Any]] = OrderedDict()

    def keep(self, caller: Caller, answer: Any) -> None:
        """Remembers what a call was answered with."""
        self._answers.pop(caller, None)
        self._answers[caller] = time.monotonic() + KEPT_SECONDS, answer
        while len(self._answers) > _MOST:
            self._answers.popitem(last=False)

    def get(self, caller: Caller) -> Any:
        """The answer, or None."""
        until, answer = self._answers.get(caller, (0.0, None))
        return answer if time.monotonic() < until else None
