"""The order of the fair waiting room, as the board asks for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .board import RequestKey
from .fairness import FairQueue


@dataclass(frozen=True, slots=True)
class FairTurns:
    """Whose turn it is, by a `FairQueue`."""

    queue: FairQueue

    def waiting_for(self, digest: str) -> Iterable[RequestKey]:
        """The requests for one model."""
        return (ticket.key for ticket in self.queue.waiting_for(digest))

    def models(self) -> Iterable[str]:
        """The models that somebody waits for."""
        return (ticket.digest for ticket in self.queue.heads())
