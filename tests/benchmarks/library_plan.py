"""What the rows of the library's table are told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """What was asked for on the command line."""

    rounds: int
    models: int
