"""What the scheduler tells about itself."""

from __future__ import annotations

import math

from ..protocol.messages.status import RunningModel
from .fleet import Fleet, Worker
from .policies.views import WorkerState


def running_models(fleet: Fleet, now: float, unix: float) -> list[RunningModel]:
    """The loaded models, the one that expires last first; `unix` is the wall clock at `now`.

    Each is listed once: its sizes are those of all its replicas together, its context is that of
    the largest one, and it is there until the last one expires.
    """
    replicas: dict[str, list[Worker]] = {}
    for worker in fleet.workers.values():
        if worker.state is WorkerState.READY and worker.model and worker.digest in fleet.facts:
            replicas.setdefault(worker.digest or "", []).append(worker)
    models: list[RunningModel] = []
    for digest, workers in replicas.items():
        facts = fleet.facts[digest]
        loaded = [worker.model for worker in workers if worker.model]
        ends = [_expires_at(worker, now, unix) for worker in workers]
        models.append(
            RunningModel(
                name=facts.name,
                digest=digest,
                size=sum(model.size for model in loaded),
                size_vram=sum(model.size_vram for model in loaded),
                context_length=max(worker.context_length for worker in workers),
                expires_at=None if None in ends else max(end for end in ends if end is not None),
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
