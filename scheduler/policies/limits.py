"""What an operator has said about single models."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """How many replicas a model has, and where."""

    min_replicas: int = 0
    """Replicas that stay loaded whether anybody asks for them or not."""
    max_replicas: int | None = None
    """None for as many as are worth it."""
    devices: tuple[str, ...] = ()
    """Names of the only devices that it may lie on; empty for all."""
    preload: bool = False
    """Whether it is loaded when the server starts."""

    @property
    def most(self) -> float:
        """Replicas that there may be at a time."""
        return float("inf") if self.max_replicas is None else self.max_replicas


NO_LIMITS = ModelLimits()
