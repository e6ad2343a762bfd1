"""What the scheduler tells about itself."""

from __future__ import annotations

import math

from ..protocol.messages.status import RunningModel
from .fleet import Fleet, Worker
from .policies.assignment import WorkerState


def running_models(fleet: Fleet, now: float, unix: float) -> list[RunningModel]:
    """The loaded models, the one that expires last first; `unix` is the wall clock at `now`."""
    models: list[RunningModel] = []
    for worker in fleet.workers.values():
        facts = fleet.facts.get(worker.digest or "")
        if worker.state is not WorkerState.READY or worker.model is None or facts is None:
            continue
        models.append(
            RunningModel(
                name=facts.name,
                digest=facts.digest,
                size=worker.model.size,
                size_vram=worker.model.size_vram,
                context_length=worker.context_length,
                expires_at=_expires_at(worker, now, unix),
                details=facts.details,
            )
        )
    return sorted(models, key=lambda model: model.expires_at or math.inf, reverse=True)


def _expires_at(worker: Worker, now: float, unix: float) -> float | None:
    if worker.keep_alive < 0:
        return None
    # Its time only starts to run when the last request is done.
    idle_since = now if worker.running else worker.last_used
    return unix + idle_since + worker.keep_alive - now
