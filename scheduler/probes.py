"""Jobs of blank workers: to tell which devices there are, and what models take.

A worker does one job and exits, and its successor is blank again; a death over a job, or one that
takes too long, counts as its failure, so that nothing waits for an answer for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import uuid4

from ..protocol.doors import Doors
from ..protocol.messages.devices import Discover, Discovered, JobFailed, Measure, Measured
from .devices import Devices
from .fleet import Fleet, Worker, now
from .footprint import Footprints
from .nvml import GpuWatch
from .policies.assignment import WorkerState

_log = logging.getLogger(__name__)

_JOB_SECONDS = 30.0
"""Longest time for a job: drivers of many GPUs may take ten seconds to start."""


class Probes:
    """Which worker does which job. `end` has one exit by itself, `kill` one that does not."""

    def __init__(
        self,
        fleet: Fleet,
        router: Doors,
        devices: Devices,
        footprints: Footprints,
        end: Callable[[Worker, str], None],
        kill: Callable[[Worker, str], None],
    ) -> None:
        self._fleet = fleet
        self._router = router
        self._devices = devices
        self._footprints = footprints
        self._end = end
        self._kill = kill
        self._jobs: dict[str, Discover | Measure] = {}
        """By worker."""
        self._watch: GpuWatch | None = None

    def close(self) -> None:
        """Watches nothing any more."""
        if self._watch:
            self._watch.close()

    def assign(self) -> list[Worker]:
        """Gives blank workers the jobs that are to be done, at most one of each kind at a time.

        Returns the workers that have got one.
        """
        given: list[Worker] = []
        workers = self._fleet.workers.values()
        blank = [w for w in workers if w.state is WorkerState.BLANK and not (w.remote or w.dead)]
        if blank and self._devices.needs_discovery:
            self._devices.on_discovering()
            given.append(blank.pop(0))
            self._give(given[-1], Discover(uuid4().hex))
        # What a model takes depends on the devices.
        if blank and self._devices.known and (load := self._footprints.wanted()):
            self._footprints.on_measuring(load)
            given.append(blank.pop(0))
            self._give(given[-1], Measure(uuid4().hex, load))
        return given

    def _give(self, worker: Worker, job: Discover | Measure) -> None:
        worker.enter(WorkerState.PROBING, now())
        self._jobs[worker.id] = job
        if not self._router.send(worker.id, job):
            # Its connection is gone and its death not yet known.
            self._kill(worker, "it cannot be reached")

    def on_answer(self, worker: Worker, answer: Discovered | Measured | JobFailed) -> None:
        """A worker is done with its job, and exits."""
        job = self._jobs.get(worker.id)
        if job is None or job.call != answer.call:
            return
        del self._jobs[worker.id]
        match job, answer:
            case Discover(), Discovered():
                self._devices.on_discovered(answer)
                self._watch_gpus()
            case Measure(_, load), Measured():
                self._footprints.on_measured(load, answer)
            case _, JobFailed(_, failure):
                self._fail(job, failure.message)
            case _:
                self._fail(job, f"the worker answered with {type(answer).__name__}")
        if worker.state is WorkerState.PROBING:
            self._end(worker, "its job is done")

    def on_gone(self, worker: Worker) -> None:
        """A worker is gone."""
        if job := self._jobs.pop(worker.id, None):
            self._fail(job, "the worker process died over it")

    def _fail(self, job: Discover | Measure, reason: str) -> None:
        if isinstance(job, Measure):
            self._footprints.on_failed(job.load, reason)
        else:
            self._devices.on_discovery_failed(reason)

    def trouble(self, worker: Worker, moment: float) -> str | None:
        """Why a worker with a job has to be killed; None while it is well."""
        if worker.state is WorkerState.PROBING and moment - worker.since > _JOB_SECONDS:
            return f"its job took more than {_JOB_SECONDS:g} s"
        return None

    def _watch_gpus(self) -> None:
        ids = [id for id in self._devices.watched_ids() if id]
        if ids:
            devices = self._devices
            self._watch = GpuWatch(ids, lambda: devices.turn, devices.on_readings)
