"""Carries out what the policy decides: requests to workers, models into workers, workers out.

`advance` is called after everything that happened. It asks the policy what can be done now, on all
that is known, and does it; so no handler needs to know what its own event makes possible.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable

from ..protocol.channels import Router
from ..protocol.deadline import deadline_exceeded, is_over
from ..protocol.errors import Code, PronkError
from ..protocol.messages.failure import Failure
from ..protocol.messages.generation import Failed, Lost, Preload, Preloaded
from ..protocol.messages.library import DescribeModel, ModelDescribed
from ..protocol.messages.placement import Load, Unload
from ..protocol.questions import Questions
from ..protocol.settings import Settings
from .devices import Devices
from .fleet import Fleet, RequestKey, Waiting, Worker, now
from .footprint import Footprints, bytes_by_device
from .policies.assignment import Dispatch, EndReplica, LoadModel, WorkerState, assign
from .policies.loading import load_of, unusable_parameters
from .policies.resources import Footprint
from .probes import Probes
from .refusals import queue_full, waited_too_long

_log = logging.getLogger(__name__)

SETTLE = 1.5
"""Longest time in seconds after the start in which nothing is decided, because workers that
outlived an earlier scheduler are still announcing what they have. Each speaks once a second, and is
connected again within half a second."""


class Dispatcher:
    """The acting half of the scheduler. It owns no socket; the service lends it the router.

    `on_unwatched_death` hears of a worker that has to count as dead without proof of it.
    """

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        router: Router,
        store: Questions,
        devices: Devices,
        footprints: Footprints,
        on_unwatched_death: Callable[[Worker], None],
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._router = router
        self._store = store
        self.devices = devices
        self.footprints = footprints
        self.probes = Probes(fleet, router, devices, footprints, self.end, self.kill)
        self._on_unwatched_death = on_unwatched_death
        self._describing: dict[str, asyncio.Task[None]] = {}
        self._settled = now() + SETTLE
        self._settling = asyncio.get_running_loop().call_later(SETTLE, self.advance)
        self._advancing = False

    def close(self) -> None:
        """Stops waiting for the store and for whoever has not announced itself."""
        self._settling.cancel()
        self.probes.close()
        for task in self._describing.values():
            task.cancel()

    def admit(self, waiting: Waiting) -> None:
        """Queues a request and serves it at once where that can be. Beyond the bound, refuses the
        newest one of the heaviest caller, which may be this one or one that waits already.
        """
        fleet, settings = self._fleet, self._settings
        self.describe(waiting.header.digest)
        fleet.add_waiting(waiting)
        self.advance()
        while refused := fleet.to_refuse(settings.max_queue, settings.max_queue_bytes):
            others, waited = refused
            fleet.remove_waiting(others.key)
            self.fail(others, queue_full(len(fleet.waiting), waited))

    def give_up_waiting(self) -> None:
        """Ends what has waited past its deadline, or for longer than requests may."""
        moment, unix, longest = now(), time.time(), self._settings.queue_timeout
        for waiting in list(self._fleet.waiting.values()):
            if is_over(waiting.deadline, unix):
                failure = Failure.of(deadline_exceeded())
            elif (
                longest
                and moment - waiting.since > longest
                # A load that is asked for takes as long as it takes, and half of an answer may be
                # with its client.
                and not (waiting.resumed or isinstance(waiting.header, Preload))
            ):
                failure = waited_too_long(longest)
            else:
                continue
            self._fleet.remove_waiting(waiting.key)
            self.fail(waiting, failure)

    def advance(self) -> None:
        """Does all that can be done now."""
        everybody_is_here = len(self._fleet.workers) >= self._settings.workers
        if self._advancing or (now() < self._settled and not everybody_is_here):
            return
        self._advancing = True
        try:
            self._advance()
        finally:
            self._advancing = False

    def _advance(self) -> None:
        self.probes.assign()
        self._answer_preloads()
        demands = self._fleet.demands(self._settings.context_length)
        if not demands:
            self._expire()
            return
        views = [worker.view for worker in self._fleet.workers.values()]
        for action in assign(demands, views, self._fleet.departed(now())):
            worker = self._fleet.workers.get(action.worker)
            if worker is None:
                continue  # an earlier action found that it is gone; the next look sees that
            match action:
                case Dispatch(demand, _):
                    self._dispatch(demand, worker)
                case LoadModel(_, digest, context_length):
                    load = load_of(self._fleet.facts[digest], context_length, self._settings)
                    # Without them nobody knows where it fits; another look follows their arrival.
                    if self.devices.known and (footprint := self.footprints.of(load)):
                        self._load(worker, load, footprint)
                case EndReplica(_, reason):
                    self.end(worker, reason)
        self.probes.assign()
        self._expire()

    def _answer_preloads(self) -> None:
        for key, waiting in list(self._fleet.waiting.items()):
            if not isinstance(waiting.header, Preload):
                continue
            for worker in self._fleet.replicas(waiting.header.digest):
                if waiting.header.digest not in self._fleet.facts:
                    break
                wanted = self._context_needed(waiting)
                if worker.state is WorkerState.READY and wanted <= worker.context_length:
                    self._fleet.remove_waiting(key)
                    self._use(worker, waiting.header.keep_alive)
                    self._router.send(waiting.frontend, Preloaded(waiting.header.request))
                    break

    def _use(self, worker: Worker, keep_alive: float | None) -> None:
        worker.last_used = now()
        worker.keep_alive = self._settings.keep_alive if keep_alive is None else keep_alive

    def _dispatch(self, key: RequestKey, worker: Worker) -> None:
        waiting = self._fleet.waiting[key]
        if isinstance(waiting.header, Preload):
            return  # a preload takes no slot: it is answered as soon as a replica suits it
        self._fleet.serve_waiting(key)
        if not worker.running:
            worker.progressed = now()
        worker.running[key] = waiting.frontend
        self._use(worker, waiting.header.keep_alive)
        if not self._router.send(worker.id, waiting.header, waiting.body):
            # Its connection is gone and its death not yet known.
            self.kill(worker, "it cannot be reached")

    def _load(self, worker: Worker, load: Load, footprint: Footprint) -> None:
        worker.enter(WorkerState.LOADING, now())
        worker.load = load
        worker.digest = load.model.digest
        worker.context_length = load.context_length
        self.devices.promise(worker.id, bytes_by_device(footprint, load))
        # Whoever asked may have left by the time that it is loaded.
        worker.keep_alive = self._settings.keep_alive
        _log.info("worker %s loads %s, context %d", worker.id, load.model.name, load.context_length)
        if not self._router.send(worker.id, load):
            self.kill(worker, "it cannot be reached")

    def end(self, worker: Worker, reason: str) -> None:
        """Has a worker exit by itself."""
        worker.enter(WorkerState.ENDING, now())
        _log.info("worker %s ends: %s", worker.id, reason)
        if not self._router.send(worker.id, Unload(reason)):
            self.kill(worker, "it cannot be reached")

    def kill(self, worker: Worker, reason: str) -> None:
        """Ends a worker that does not end by itself."""
        _log.warning("worker %s is killed: %s", worker.id, reason)
        # First of all: its death is no word about the model that it was to load.
        if worker.state is not WorkerState.ENDING:
            worker.enter(WorkerState.ENDING, now())
        if worker.pidfd is None:
            # On another host, dead before it was greeted, or no pidfd here: all that can be done.
            self._on_unwatched_death(worker)
            return
        with contextlib.suppress(ProcessLookupError):  # dead already, and about to be noticed
            signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)

    def _expire(self) -> None:
        """Unloads what nobody asked for long enough."""
        moment = now()
        for worker in list(self._fleet.workers.values()):
            idle = worker.state is WorkerState.READY and not worker.running
            if (
                idle
                and worker.expires <= moment
                and not self._fleet.queue.count(worker.digest or "")
            ):
                self.end(worker, "keep_alive is over")

    def describe(self, digest: str) -> None:
        """Learns a model's facts from the store, unless they are known or asked for."""
        if digest in self._fleet.facts or digest in self._describing:
            return
        self._describing[digest] = asyncio.create_task(self._learn(digest))

    async def _learn(self, digest: str) -> None:
        try:
            answer = await self._store.ask(lambda call: DescribeModel(call, digest))
            if not isinstance(answer, ModelDescribed):
                raise PronkError(Code.INTERNAL, "the model library gave an answer of another kind")
            self._fleet.facts[digest] = answer.facts
            for line in unusable_parameters(answer.facts):
                _log.warning("%s: its parameter %s", answer.facts.name, line)
        except PronkError as error:
            self.fail_all(digest, Failure.of(error))
        finally:
            del self._describing[digest]
        self.advance()

    def fail(self, waiting: Waiting, failure: Failure) -> None:
        """Tells a request's frontend that it ends here."""
        request, attempt = waiting.key
        self._router.send(waiting.frontend, Failed(request, attempt, failure))

    def fail_all(self, digest: str, failure: Failure, *, context: int = 0) -> None:
        """Ends everything that waits for a model and needs at least `context` tokens."""
        for waiting in self._fleet.waiting_for(digest):
            if context and self._context_needed(waiting) < context:
                continue
            self._fleet.remove_waiting(waiting.key)
            self.fail(waiting, failure)

    def _context_needed(self, waiting: Waiting) -> int:
        return self._fleet.context_needed(waiting, self._settings.context_length)

    def fail_load(self, worker: Worker, reason: str) -> None:
        """Ends everything that waits for the model that a worker was loading."""
        digest = worker.digest or ""
        name = self._fleet.facts[digest].name
        message = f"{name} could not be loaded: {reason}"
        self.fail_all(digest, Failure(Code.LOAD_FAILED, message))

    def lose(
        self,
        key: RequestKey,
        frontend: str,
        reason: str = "the worker process that generated this answer died; try again",
    ) -> None:
        """Tells a frontend that nobody works on its request any more."""
        self._router.send(frontend, Lost(*key, Failure(Code.WORKER_LOST, reason)))
