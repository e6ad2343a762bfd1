"""Log probabilities: how sure the model was of each token, before any sampling option."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ...protocol.messages.generation import PositionLogprobs, TokenLogprob
from .candidates import Array, likeliest

_NEVER = -9999.0
"""What stands for the logarithm of 0, which JSON cannot say."""


class Pieces(Protocol):
    """What log probabilities need of a vocabulary."""

    def piece(self, token: int) -> bytes:
        """The bytes that `token` adds to a text; none for control tokens."""
        ...

    def written(self, token: int) -> bytes:
        """How `token` is written, control tokens too."""
        ...


def position_logprobs(logits: Array, token: int, top: int, vocabulary: Pieces) -> PositionLogprobs:
    """Of the token that was chosen at one position, and of the `top` likeliest there.

    `logits` are the model's, finite or −∞: where some were masked, the others share their part.
    """
    largest = logits.max()
    total = np.exp(logits - largest).sum(dtype=np.float64)
    zero = float(largest) + float(np.log(total))

    def of(piece: bytes, logit: float) -> TokenLogprob:
        return TokenLogprob(piece, min(max(float(logit) - zero, _NEVER), 0.0))

    return PositionLogprobs(
        of(vocabulary.piece(token), logits[token]),
        [of(vocabulary.written(id_), logit) for id_, logit in _top(logits, top)],
    )


def _top(logits: Array, count: int) -> list[tuple[int, float]]:
    """The likeliest tokens first; of equally likely ones, those with the smaller id."""
    if count <= 0:
        return []
    found = likeliest(logits, count)
    ids = found.ids if found else np.flatnonzero(logits > -np.inf)
    values = found.logits if found else logits[ids]
    order = np.lexsort((ids, -values))[:count]
    return list(zip(ids[order].tolist(), values[order].tolist(), strict=True))
