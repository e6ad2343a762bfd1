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
from collections.abc import Callable, Iterable
from dataclasses import replace

from ..protocol.deadline import deadline_exceeded, is_over
from ..protocol.doors import Doors
from ..protocol.errors import Code, PronkError
from ..protocol.messages import placement
from ..protocol.messages.failure import Failure
from ..protocol.messages.generation import Failed, Generate, Lost, Preload, Preloaded
from ..protocol.messages.library import DescribeModel, ModelDescribed, ModelFacts
from ..protocol.messages.placement import Unload
from ..protocol.questions import Questions
from ..protocol.settings import Settings
from .devices import Devices
from .fleet import Fleet, RequestKey, Waiting, Worker, now
from .footprint import Footprints
from .overview import Overview
from .policies.cooldown import Cooldowns
from .policies.loading import load_of, threads_for, unusable_parameters
from .policies.views import (
    Action,
    Dispatch,
    EndReplica,
    Fail,
    LoadModel,
    SetThreads,
    WorkerState,
)
from .probes import Probes
from .refusals import queue_full, waited_too_long
from .standing import Standing

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
        router: Doors,
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
        self.overview = Overview(settings, fleet, devices, footprints)
        self.probes = Probes(fleet, router, devices, footprints, self.end, self.kill)
        self._on_unwatched_death = on_unwatched_death
        self._cooldowns = Cooldowns(settings.load_cooldown)
        self._describing: dict[str, asyncio.Task[None]] = {}
        self._settled = now() + SETTLE
        self._settling = asyncio.get_running_loop().call_later(SETTLE, self.advance)
        self._advancing = False
        self._standing = Standing(settings, store, self._on_standing)

    def close(self) -> None:
        """Stops waiting for the store and for whoever has not announced itself."""
        self._settling.cancel()
        self._standing.close()
        self.probes.close()
        for task in self._describing.values():
            task.cancel()

    @property
    def settled(self) -> bool:
        """Whether everybody who outlived an earlier scheduler has had the time to say so."""
        return now() >= self._settled or self._everybody_is_here()

    def admit(self, waiting: Waiting) -> None:
        """Queues a request and serves it at once where that can be. Beyond the bound, refuses the
        newest one of the heaviest caller, which may be this one or one that waits already.
        """
        fleet, settings = self._fleet, self._settings
        self.describe(waiting.header.digest)
        if refusal := self._refusal(waiting):
            self.fail(waiting, refusal)
            return
        fleet.add_waiting(waiting)
        if waiting.header.digest in fleet.facts:
            self.overview.add(waiting)
        self.advance_with()
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

    def _refusal(self, waiting: Waiting) -> Failure | None:
        """Why the model of a request is not loaded just now, where no replica of it is there."""
        digest = waiting.header.digest
        if digest not in self._fleet.facts:
            return None
        needed = self._context_needed(waiting)
        for worker in self._fleet.replicas(digest):
            if worker.state is WorkerState.READY and needed <= worker.context_length:
                return None
        return self._cooldowns.refusal(digest, needed, now())

    def advance(self) -> None:
        """Does all that can be done now, whatever has changed. Called about once a second, too."""
        self._advance(self.overview.look_at_everything, self._fleet.workers.values())

    def advance_with(self, *changed: Worker) -> None:
        """Does what can be done now that these workers have changed, and nothing but requests
        beside them. Takes no longer with more workers, devices and models.
        """
        self._advance(lambda: self.overview.look(changed), changed)

    def _advance(self, look: Callable[[], list[Action]], expiring: Iterable[Worker]) -> None:
        if self._advancing or not self.settled:
            return
        self._advancing = True
        try:
            self._expire(expiring)
            for action in look():
                self._act(action)
            for worker in self.probes.assign():
                self.overview.update(worker)
        finally:
            self._advancing = False

    def _everybody_is_here(self) -> bool:
        here = sum(not worker.remote for worker in self._fleet.workers.values())
        return here >= self._settings.workers

    def _act(self, action: Action) -> None:
        if isinstance(action, Fail):
            name = self._fleet.facts[action.digest].name
            failure = Failure(Code.LOAD_FAILED, f"{name} does not fit: {action.reason}")
            self.fail_all(action.digest, failure, context=action.context_length)
            return
        worker = self._fleet.workers.get(action.worker)
        if worker is None or worker.dead:
            return  # it is gone, or will be in a moment: the look that follows sees that
        match action:
            case Dispatch(key, _):
                self._dispatch(key, worker)
            case LoadModel():
                self._load(worker, action)
            case EndReplica(_, reason):
                self.end(worker, reason)
            case SetThreads(_, threads):
                worker.threads = threads
                self._router.send(worker.id, placement.SetThreads(threads))
        self.overview.update(worker)

    def _use(self, worker: Worker, keep_alive: float | None) -> None:
        worker.last_used = now()
        worker.keep_alive = self._settings.keep_alive if keep_alive is None else keep_alive

    def _dispatch(self, key: RequestKey, worker: Worker) -> None:
        waiting = self._fleet.waiting.get(key)
        if waiting is None or worker.state is not WorkerState.READY:
            return  # an earlier action has changed the world; the next look sees that
        if isinstance(waiting.header, Preload):
            self._fleet.remove_waiting(key)
            self._use(worker, waiting.header.keep_alive)
            self._router.send(waiting.frontend, Preloaded(waiting.header.request))
            return
        self._fleet.serve_waiting(key)
        if not worker.running:
            worker.progressed = now()
        worker.take(key, waiting.frontend, suspect=waiting.suspect)
        _log.debug("request %s attempt %d goes to worker %s", *key, worker.id)
        self._use(worker, waiting.header.keep_alive)
        if isinstance(waiting.header, Generate):
            self.overview.board.prefixes.note(worker.id, waiting.header.prefix)
        if not self._router.send(worker.id, waiting.header, waiting.body):
            # Its connection is gone and its death not yet known.
            self.kill(worker, "it cannot be reached")

    def _load(self, worker: Worker, action: LoadModel) -> None:
        if worker.state is not WorkerState.BLANK:
            return  # a job of its own came first; the next look finds another one
        facts = self._fleet.facts[action.digest]
        load = load_of(facts, action.context_length, self._settings)
        load = replace(
            load,
            threads=action.threads,
            parallel=action.slots or load.parallel,
            shares=list(action.shares),
            layers=action.layers,
        )
        worker.enter(WorkerState.LOADING, now())
        worker.load = load
        worker.digest = action.digest
        worker.context_length = action.context_length
        worker.taken = dict(action.taken)
        worker.num_gpu, worker.layers = action.num_gpu, action.layers
        worker.all_layers = action.all_layers
        worker.cores, worker.threads = action.cores, action.threads
        worker.most_threads = threads_for(facts, self._settings.threads)
        self.devices.promise(worker.id, action.taken)
        self.overview.see_devices()
        # Whoever asked may have left by the time that it is loaded.
        worker.keep_alive = self._settings.keep_alive
        where = ", ".join(share.device for share in action.shares) or "the CPU"
        _log.info(
            "worker %s loads %s on %s, context %d",
            worker.id,
            facts.name,
            where,
            action.context_length,
        )
        if not self._router.send(worker.id, load):
            self.kill(worker, "it cannot be reached")

    def drain(self, worker: Worker, reason: str) -> None:
        """Gives a worker nothing new, and has it exit once it has nothing left."""
        if worker.running and worker.state in (WorkerState.READY, WorkerState.DRAINING):
            if worker.state is WorkerState.READY:
                worker.enter(WorkerState.DRAINING, now())
        elif worker.state not in (WorkerState.ENDING, WorkerState.GONE):
            self.end(worker, reason)

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
        if worker.state not in (WorkerState.ENDING, WorkerState.GONE):
            worker.enter(WorkerState.ENDING, now())
        if worker.pidfd is None:
            # On another host, dead before it was greeted, or no pidfd here: all that can be done.
            # If it lives, and ever hears of it, it ends.
            self._router.send(worker.id, Unload(reason))
            self._on_unwatched_death(worker)
            return
        with contextlib.suppress(ProcessLookupError):  # dead already, and about to be noticed
            signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)

    def _expire(self, workers: Iterable[Worker]) -> None:
        """Unloads what nobody asked for long enough, and the operator does not want to stay."""
        moment = now()
        for worker in list(workers):
            digest = worker.digest or ""
            idle = worker.state is WorkerState.READY and not worker.running
            if not idle or worker.expires > moment or self._fleet.queue.count(digest):
                continue
            least = self.overview.limits(digest).min_replicas
            if not least or sum(1 for _ in self._fleet.replicas(digest)) > least:
                self.end(worker, "keep_alive is over")
                self.overview.update(worker)

    def _on_standing(self, digest: str, before: str | None) -> None:
        """A model is to be loaded although nobody asks for it, in place of another one."""
        self.overview.want(digest, before)
        self.describe(digest)
        self.advance()

    def describe(self, digest: str) -> None:
        """Learns a model's facts from the store, unless they are known or asked for."""
        if digest in self._fleet.facts or digest in self._describing:
            return
        self._describing[digest] = asyncio.create_task(self._learn(digest))

    def learn(self, facts: ModelFacts) -> None:
        """A model's facts are known now, or are not what they were taken for."""
        self._fleet.facts[facts.digest] = facts
        self.overview.learn(facts.digest)

    async def _learn(self, digest: str) -> None:
        try:
            answer = await self._store.ask(lambda call: DescribeModel(call, digest))
            if not isinstance(answer, ModelDescribed):
                raise PronkError(Code.INTERNAL, "the model library gave an answer of another kind")
            self.learn(answer.facts)
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

    def loaded(self, worker: Worker) -> None:
        """A worker has loaded its model."""
        self._cooldowns.loaded(worker.digest or "", worker.context_length)

    def load_failed(self, worker: Worker, failure: Failure, *, again: bool) -> None:
        """Ends what waits for the model that a worker was loading: at once, or with `again` only
        where this was one failure too many, and else has another worker try.
        """
        digest, context = worker.digest or "", worker.context_length
        if self._cooldowns.failed(digest, context, failure, now()) or not again:
            # Whoever asked for less context may fare better: memory may have been what was missing.
            self.fail_all(digest, failure, context=context)

    def load_broken(self, worker: Worker, reason: str, *, again: bool) -> None:
        """As `load_failed`, where the worker itself gives no reason."""
        name = self._fleet.facts[worker.digest or ""].name
        failure = Failure(Code.LOAD_FAILED, f"{name} could not be loaded: {reason}")
        self.load_failed(worker, failure, again=again)

    def lose(
        self,
        key: RequestKey,
        frontend: str,
        reason: str = "the worker process that generated this answer died; try again",
        *,
        died: bool = False,
        alone: bool = False,
    ) -> None:
        """Tells a frontend that nobody works on its request any more. See `Lost`."""
        failure = Failure(Code.WORKER_LOST, reason)
        self._router.send(frontend, Lost(*key, failure, died=died, alone=alone))
