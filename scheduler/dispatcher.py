"""Carries out what the policy decides: requests to workers, models into workers, workers out.

`advance` is called after everything that happened. It asks the policy what can be done now, on all
that is known, and does it; so no handler needs to know what its own event makes possible.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable

from ..protocol.doors import Doors
from ..protocol.errors import Code, PronkError
from ..protocol.messages.failure import Failure
from ..protocol.messages.generation import Failed, Lost, Preload, Preloaded
from ..protocol.messages.library import DescribeModel, ModelDescribed
from ..protocol.messages.placement import Unload
from ..protocol.questions import Questions
from ..protocol.settings import Settings
from .fleet import Fleet, RequestKey, Waiting, Worker, now
from .policies.assignment import Dispatch, EndReplica, LoadModel, WorkerState, assign
from .policies.cooldown import Cooldowns
from .policies.loading import load_of, unusable_parameters

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
        on_unwatched_death: Callable[[Worker], None],
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._router = router
        self._store = store
        self._on_unwatched_death = on_unwatched_death
        self._cooldowns = Cooldowns(settings.load_cooldown)
        self._describing: dict[str, asyncio.Task[None]] = {}
        self._settled = now() + SETTLE
        self._settling = asyncio.get_running_loop().call_later(SETTLE, self.advance)
        self._advancing = False

    def close(self) -> None:
        """Stops waiting for the store and for whoever has not announced itself."""
        self._settling.cancel()
        for task in self._describing.values():
            task.cancel()

    @property
    def settled(self) -> bool:
        """Whether everybody who outlived an earlier scheduler has had the time to say so."""
        return now() >= self._settled or self._everybody_is_here()

    def admit(self, waiting: Waiting) -> None:
        """Queues a request and serves it at once where that can be; refuses it beyond the bound."""
        fleet = self._fleet
        self.describe(waiting.header.digest)
        if refusal := self._refusal(waiting):
            self.fail(waiting, refusal)
            return
        fleet.add_waiting(waiting)
        self.advance()
        if waiting.key[1] > 1:
            return  # it was let in at its first attempt
        over = len(fleet.waiting) > self._settings.max_queue
        if (over or fleet.waiting_bytes > self._settings.max_queue_bytes) and fleet.remove_waiting(
            waiting.key
        ):
            self.fail(
                waiting,
                Failure(
                    Code.QUEUE_FULL,
                    "server busy, please try again: maximum pending requests exceeded "
                    f"({len(fleet.waiting)} are waiting)",
                    retry_after=1.0,
                ),
            )

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
        """Does all that can be done now."""
        if self._advancing or not self.settled:
            return
        self._advancing = True
        try:
            self._advance()
        finally:
            self._advancing = False

    def _everybody_is_here(self) -> bool:
        here = sum(not worker.remote for worker in self._fleet.workers.values())
        return here >= self._settings.workers

    def _advance(self) -> None:
        self._answer_preloads()
        demands = self._fleet.demands(self._settings.context_length)
        if not demands:
            self._expire()
            return
        for action in assign(demands, self._fleet.views(), self._fleet.departed(now())):
            worker = self._fleet.workers.get(action.worker)
            if worker is None:
                continue  # an earlier action found that it is gone; the next look sees that
            match action:
                case Dispatch(demand, _):
                    self._dispatch(demand, worker)
                case LoadModel(_, digest, context_length):
                    self._load(worker, digest, context_length)
                case EndReplica(_, reason):
                    self.end(worker, reason)
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
        self._fleet.remove_waiting(key)
        if not worker.running:
            worker.progressed = now()
        worker.take(key, waiting.frontend, suspect=waiting.suspect)
        _log.debug("request %s attempt %d goes to worker %s", *key, worker.id)
        self._use(worker, waiting.header.keep_alive)
        if not self._router.send(worker.id, waiting.header, waiting.body):
            # Its connection is gone and its death not yet known.
            self.kill(worker, "it cannot be reached")

    def _load(self, worker: Worker, digest: str, context_length: int) -> None:
        facts = self._fleet.facts[digest]
        worker.enter(WorkerState.LOADING, now())
        worker.digest = digest
        worker.context_length = context_length
        load = load_of(facts, context_length, self._settings)
        worker.devices = [share.device for share in load.shares]
        # Whoever asked may have left by the time that it is loaded.
        worker.keep_alive = self._settings.keep_alive
        _log.info("worker %s loads %s, context %d", worker.id, facts.name, context_length)
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

    def _expire(self) -> None:
        """Unloads what nobody asked for long enough."""
        moment = now()
        for worker in list(self._fleet.workers.values()):
            idle = worker.state is WorkerState.READY and not worker.running
            if (
                idle
                and worker.expires <= moment
                and not self._fleet.waiting_for(worker.digest or "")
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
