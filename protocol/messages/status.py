"""Questions to the scheduler about what it knows. `CallFailed` answers them, too."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import Count, Digest, Label, Number, RequestId
from .library import ModelDetails


@dataclass(frozen=True, slots=True)
class ListRunning:
    """Frontend → scheduler: which models are loaded?"""

    call: RequestId


@dataclass(frozen=True, slots=True)
class RunningModel:
    """A loaded model, summed over its replicas."""

    name: Label
    digest: Digest
    size: Count
    size_vram: Count
    context_length: Count
    expires_at: Number | None
    """Unix time at which it is unloaded if nobody asks for it; None for never."""
    details: ModelDetails


@dataclass(frozen=True, slots=True)
class RunningList:
    """Scheduler → frontend."""

    call: RequestId
    models: list[RunningModel]


MESSAGES = (ListRunning, RunningList)
