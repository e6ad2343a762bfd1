"""Mirostat: keeps the surprise of an answer's tokens near a target, in both published versions.

Sampling without a fixed cut: after each token, μ, the largest surprise that is still allowed, moves
by how far that token's surprise was from the target. μ is a state that follows from all logits
before: when an answer is continued in another process it begins anew.
"""

from __future__ import annotations

import math

import numpy as np

from .candidates import MAX_CANDIDATES, Array, likeliest

_ESTIMATED_FROM = 100
"""Likeliest tokens from which the first version estimates how steeply probabilities fall."""


class Mirostat:
    """The state of one answer. `version` is 1 or 2; `tau` the target in bits, `eta` the rate."""

    def __init__(self, version: int, tau: float, eta: float) -> None:
        self._version = version
        self._tau = tau
        self._eta = eta
        self.mu = 2.0 * tau
        """The largest surprise, in bits, that is allowed now."""

    def choose(self, logits: Array, chance: float) -> int:
        """The token for a `chance` from 0 to 1; the largest of the logits must be finite."""
        ids = self._allowed_by_rank(logits) if self._version == 1 else self._allowed(logits)
        weights = np.exp((logits[ids] - logits.max()).astype(np.float64))
        sums = weights.cumsum()
        place = min(int(sums.searchsorted(chance * sums[-1], "right")), len(ids) - 1)
        surprise = -math.log2(max(weights[place] / sums[-1], 1e-300))
        self.mu -= self._eta * (surprise - self._tau)
        return int(ids[place])

    def _allowed(self, logits: Array) -> Array:
        """Tokens whose surprise is not over μ, or else the likeliest one."""
        largest = float(logits.max())
        total = float(np.exp(logits - np.float32(largest)).sum(dtype=np.float64))
        least = largest + math.log(total) - self.mu * math.log(2.0)
        return np.flatnonzero(logits >= min(least, largest))

    def _allowed_by_rank(self, logits: Array) -> Array:
        """As many of the likeliest tokens as give a mean surprise of μ, if Zipf's law holds."""
        size = len(logits)
        steepness = _steepness(logits)
        excess = steepness - 1.0
        count = 1
        try:
            within = -math.expm1(-excess * math.log(size)) / excess  # (1 − n^−ε) / ε
            count = int((2.0**self.mu / within) ** (1.0 / steepness))
        except (ZeroDivisionError, OverflowError, TypeError, ValueError):
            count = size  # no slope: all are alike
        return _top(logits, min(max(count, 1), size))


def _steepness(logits: Array) -> float:
    """Zipf's exponent, fitted to the likeliest tokens."""
    ids = _top(logits, min(_ESTIMATED_FROM, len(logits)))
    values = np.sort(logits[ids].astype(np.float64))[::-1]
    values = values[np.isfinite(values)]
    ranks = np.arange(1, len(values))
    steps = np.log((ranks + 1) / ranks)
    return float((steps * (values[:-1] - values[1:])).sum() / max((steps**2).sum(), 1e-9))


def _top(logits: Array, count: int) -> Array:
    """The `count` likeliest tokens that are possible, in ascending order of their ids."""
    found = likeliest(logits, count) if count <= MAX_CANDIDATES else None
    if found:
        ids, values = found.ids, found.logits
    else:
        ids = np.flatnonzero(logits > -np.inf)
        values = logits[ids]
    if len(ids) > count:
        ids = ids[np.argpartition(values, len(ids) - count)[len(ids) - count :]]
    return np.sort(ids)
