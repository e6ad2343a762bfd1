"""The scheduler's process: who is there, what they say, and who died.

It keeps the fleet's state true; what follows from that is the dispatcher's to do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..protocol.channels import Router
from ..protocol.codec import VERSION
from ..protocol.doors import Doors, open_remote
from ..protocol.errors import Code
from ..protocol.logs import RateLimitedLog
from ..protocol.messages.devices import Discovered, JobFailed, Measured
from ..protocol.messages.embedding import Embed
from ..protocol.messages.failure import Failure
from ..protocol.messages.fleet import (
    Draining,
    Hello,
    PeerHeartbeat,
    Refused,
    RequestReport,
    Role,
    SchedulerHeartbeat,
    WhoAreYou,
    WorkerPhase,
)
from ..protocol.messages.generation import Cancel, Evict, Evicted, Generate, Preload
from ..protocol.messages.placement import Cleared, Loaded, LoadFailed, Released
from ..protocol.messages.status import ListRunning, RunningList
from ..protocol.process import new_incarnation
from ..protocol.questions import Questions
from ..protocol.settings import MIB, Settings
from ..protocol.state import StateDirectory
from .control import Control
from .death_watch import DeathWatch
from .devices import Devices
from .dispatcher import Dispatcher
from .drained import read_drained
from .fleet import Fleet, Frontend, Peer, Waiting, Worker, now
from .footprint import Footprints
from .health import overdue, silent, trouble, unreachable
from .policies.assignment import WorkerState
from .policies.classes import CallerWeights
from .status import running_models

_log = logging.getLogger(__name__)

TICK = 1.0
"""Seconds between heartbeats, and between looks at everything that happens by itself."""

CLAIM_SECONDS = 5.0
"""How long a worker may take to announce itself that a frontend says runs a request, and how long
the end of an answer may then be on its way."""

STANDSTILL = 3.0
"""Seconds by which a tick is late when that is worth a line in the log."""


class Scheduler:
    """One scheduler. `start`, then it lives from its sockets and timers until `close`."""

    def __init__(self, settings: Settings, devices: Devices | None = None) -> None:
        """`devices` are given where it is known beforehand which there are."""
        self._settings = settings
        self._devices = devices or Devices(settings)
        self._footprints = Footprints(self._devices)
        self._state = StateDirectory(settings.state)
        self._boot_id = new_incarnation()
        self._fleet = Fleet(CallerWeights(settings.caller_classes).of)
        self._odd = RateLimitedLog(_log)
        self._from_worker: dict[str, Callable[[Worker, Any], None]] = {
            PeerHeartbeat.__name__: self._on_worker_heartbeat,
            Draining.__name__: self._on_worker_draining,
            Loaded.__name__: self._on_loaded,
            LoadFailed.__name__: self._on_load_failed,
            Released.__name__: self._on_released,
            Cleared.__name__: self._on_cleared,
            Discovered.__name__: self._on_answer,
            Measured.__name__: self._on_answer,
            JobFailed.__name__: self._on_answer,
        }
        self._from_frontend: dict[str, Callable[[Frontend, Any, bytes], None]] = {
            PeerHeartbeat.__name__: self._on_frontend_heartbeat,
            Draining.__name__: self._on_frontend_draining,
            Generate.__name__: self._on_request,
            Embed.__name__: self._on_request,
            Preload.__name__: self._on_preload,
            Evict.__name__: self._on_evict,
            Cancel.__name__: self._on_cancel,
            ListRunning.__name__: self._on_list_running,
        }

    def start(self) -> None:
        """Takes the lock on the state directory and opens the sockets.

        Raises `PronkError` when another scheduler has the directory.
        """
        self._state.prepare()
        self._lock = self._state.lock("scheduler")
        max_body = self._settings.max_generation_body + MIB
        bounds: dict[str, Any] = {"max_body": max_body, "outbox_bytes": 2 * max_body}
        remote = open_remote(
            self._settings, [0], self._on_remote, on_stuck=self._on_stuck, **bounds
        )
        local = Router(self._state.scheduler, self._on_message, self._on_stuck, **bounds)
        self._router = Doors(local, remote)
        self._deaths = DeathWatch(self._router, SchedulerHeartbeat(self._boot_id))
        self._store = Questions(self._state.store)
        self._dispatcher = Dispatcher(
            self._settings,
            self._fleet,
            self._router,
            self._store,
            self._devices,
            self._footprints,
            self._worker_gone,
        )
        self._fleet.drained_devices |= read_drained(self._state.drained_devices)
        self._control = Control(self._state, self._fleet, self._dispatcher, self._router.send)
        self._ticked = now()
        self._ticking = asyncio.create_task(self._tick_for_ever())
        _log.info("the scheduler is up, boot id %s", self._boot_id)

    def close(self) -> None:
        """Leaves. Peers notice a missing heartbeat and wait for the next scheduler."""
        self._ticking.cancel()
        self._dispatcher.close()
        for worker in list(self._fleet.workers.values()):
            self._forget(self._fleet.workers, worker)
        for frontend in list(self._fleet.frontends.values()):
            self._forget(self._fleet.frontends, frontend)
        self._control.close()
        self._router.close()
        self._store.close()
        os.close(self._lock)

    # Messages

    def _on_message(self, sender: str, message: Any, body: bytes) -> None:
        if isinstance(message, Hello):
            self._on_hello(sender, message)
            return
        name = type(message).__name__
        if worker := self._fleet.workers.get(sender):
            worker.heard = now()
            if handle := self._from_worker.get(name):
                handle(worker, message)
                return
        elif frontend := self._fleet.frontends.get(sender):
            frontend.heard = now()
            if answer := self._from_frontend.get(name):
                answer(frontend, message, body)
                return
        else:
            # ZeroMQ reconnects in silence: this one knew an earlier scheduler.
            self._router.send(sender, WhoAreYou(self._boot_id))
            return
        self._odd.warning("unexpected message", f"{name} from {sender}")

    def _on_remote(self, sender: str, message: Any, body: bytes) -> None:
        """A peer of another host spoke. It may be a worker, and nobody who is known here."""
        worker = self._fleet.workers.get(sender)
        if sender in self._fleet.frontends or (worker and not worker.remote):
            self._odd.warning("impostor", f"{sender} is known, and not of another host")
        elif isinstance(message, Hello) and message.role is not Role.WORKER:
            self._refuse(sender, message, "only workers may join from other hosts")
        elif isinstance(message, Hello):
            self._on_hello(sender, message, remote=True)
        else:
            self._on_message(sender, message, body)

    def _refuse(self, sender: str, hello: Hello, reason: str) -> None:
        self._odd.warning("refused", f"{hello.role} {sender}: {reason}")
        self._router.send(sender, Refused(Failure(Code.INVALID_REQUEST, reason)))

    def _on_hello(self, sender: str, hello: Hello, *, remote: bool = False) -> None:
        if hello.version != VERSION or hello.incarnation != sender:
            reason = f"protocol version {hello.version} is not {VERSION}"
            if hello.incarnation != sender:
                reason = "the incarnation is not the socket's identity"
            self._refuse(sender, hello, reason)
            return
        if hello.role is Role.WORKER:
            self._greet_worker(sender, hello, remote)
        else:
            self._greet_frontend(sender, hello)
        self._router.send(sender, SchedulerHeartbeat(self._boot_id))
        self._dispatcher.advance()

    def _greet_worker(self, sender: str, hello: Hello, remote: bool) -> None:
        if sender in self._fleet.workers:
            return
        moment = now()
        worker = Worker(
            sender,
            hello.process,
            None,
            moment,
            hello.name,
            since=moment,
            progressed=moment,
            remote=remote,
        )
        if hello.phase in (WorkerPhase.READY, WorkerPhase.DRAINING) and hello.model:
            worker.state = WorkerState(hello.phase)
            worker.model = hello.model
            if not remote:  # whose devices are none of these
                self._devices.settle(sender, hello.model)
                worker.cores = bool(self._settings.devices) or not hello.model.size_vram
            worker.settle(hello.model)
            worker.most_threads = self._settings.threads
            self._dispatcher.overview.board.prefixes.note(sender, hello.prefixes)
            worker.digest = hello.model.digest
            worker.context_length = hello.model.context_length
            worker.keep_alive = self._settings.keep_alive
            worker.last_used = moment
            for run in hello.requests:
                worker.take((run.request, run.attempt), run.frontend, suspect=run.suspect)
            for key in worker.running:
                self._fleet.remove_waiting(key)
            self._dispatcher.describe(hello.model.digest)
        elif not remote:
            self._fleet.note_arrival()
        if remote:
            worker.lacks = self._fleet.absences.of(worker.process, moment)
        self._fleet.workers[sender] = worker
        self._deaths.watch(worker, lambda: self._worker_gone(worker))
        if hello.phase is WorkerPhase.LOADING:
            # Who asked for the load is forgotten; a blank worker is worth more than the guess.
            self._dispatcher.end(worker, "an earlier scheduler gave it something to do")
        elif hello.phase is WorkerPhase.DRAINING:
            self._dispatcher.drain(worker, "drained")
        _log.info("worker %s (pid %d) is %s", sender, hello.process.pid, worker.state)

    def _greet_frontend(self, sender: str, hello: Hello) -> None:
        if sender not in self._fleet.frontends:
            frontend = Frontend(sender, hello.process, None, now(), hello.name)
            self._fleet.frontends[sender] = frontend
            self._deaths.watch(frontend, lambda: self._frontend_gone(frontend))
            _log.info("frontend %s (pid %d) is here", sender, hello.process.pid)
        if hello.requests:
            loop = asyncio.get_running_loop()
            loop.call_later(CLAIM_SECONDS, self._check_claims, sender, hello.requests)

    def _check_claims(self, frontend: str, reports: list[RequestReport]) -> None:
        """Tells a frontend which of its requests nobody has any more."""
        for report in reports:
            key = (report.request, report.attempt)
            if key in self._fleet.waiting or self._fleet.runs(key):
                continue
            if report.worker and report.worker not in self._fleet.workers:
                self._dispatcher.lose(key, frontend, died=True)  # and nobody knows who was there
                continue
            # Done, or given up because the frontend could not be reached. If done, its end may
            # be on its way, and a frontend that has it ignores what comes now.
            reason = "the answer was lost on its way; try again"
            asyncio.get_running_loop().call_later(
                CLAIM_SECONDS, self._dispatcher.lose, key, frontend, reason
            )

    def _on_worker_heartbeat(self, worker: Worker, beat: PeerHeartbeat) -> None:
        if beat.steps != worker.steps:
            worker.steps = beat.steps
            worker.progressed = worker.heard

    def _on_frontend_heartbeat(self, frontend: Frontend, beat: PeerHeartbeat, body: bytes) -> None:
        frontend.in_flight = beat.in_flight

    def _on_worker_draining(self, worker: Worker, message: Draining) -> None:
        self._dispatcher.drain(worker, "drained")
        self._dispatcher.advance()

    def _on_frontend_draining(self, frontend: Frontend, message: Draining, body: bytes) -> None:
        frontend.draining = True

    def _on_request(self, frontend: Frontend, header: Generate | Embed, body: bytes) -> None:
        key = (header.request, header.attempt)
        if key in self._fleet.waiting or self._fleet.runs(key):
            return  # submitted again after a restart, and known already
        self._dispatcher.admit(Waiting(header, frontend.id, body))

    def _on_preload(self, frontend: Frontend, header: Preload, body: bytes) -> None:
        waiting = Waiting(header, frontend.id)
        if waiting.key not in self._fleet.waiting and not self._fleet.runs(waiting.key):
            self._dispatcher.admit(waiting)

    def _on_evict(self, frontend: Frontend, message: Evict, body: bytes) -> None:
        for worker in list(self._fleet.workers.values()):
            if worker.digest != message.digest:
                continue
            self._dispatcher.drain(worker, "unloaded on request")
        self._router.send(frontend.id, Evicted(message.request))
        self._dispatcher.advance()

    def _on_cancel(self, frontend: Frontend, message: Cancel, body: bytes) -> None:
        key = (message.request, message.attempt)
        if self._fleet.remove_waiting(key):
            return
        if worker := self._fleet.runs(key):
            self._router.send(worker.id, message)

    def _on_list_running(self, frontend: Frontend, message: ListRunning, body: bytes) -> None:
        models = running_models(self._fleet, now(), time.time())
        self._router.send(frontend.id, RunningList(message.call, models))

    def _on_loaded(self, worker: Worker, message: Loaded) -> None:
        if worker.state is not WorkerState.LOADING or message.model.digest != worker.digest:
            self._odd.warning("unexpected message", f"Loaded from {worker.id} {worker.state}")
            return
        moment = now()
        worker.enter(WorkerState.READY, moment)
        worker.model = message.model
        worker.settle(message.model)
        worker.ready_since, worker.load_seconds = moment, message.duration / 1e9
        if not worker.remote:
            self._devices.settle(worker.id, message.model)
        if worker.load and not worker.remote:
            self._footprints.on_loaded(worker.load, message.model)
        facts = self._fleet.facts[message.model.digest]
        if message.model.context_length < worker.context_length:
            # It has no more to give, whatever its file says: asking again would never end.
            self._dispatcher.learn(replace(facts, context_length=message.model.context_length))
        worker.context_length = message.model.context_length
        worker.last_used = moment
        self._dispatcher.loaded(worker)
        _log.info(
            "%s is loaded by worker %s in %.2f s, context %d",
            message.model.name,
            worker.id,
            message.duration / 1e9,
            worker.context_length,
        )
        self._dispatcher.advance()

    def _on_load_failed(self, worker: Worker, message: LoadFailed) -> None:
        if worker.state is not WorkerState.LOADING or message.digest != worker.digest:
            self._odd.warning("unexpected message", f"LoadFailed from {worker.id} {worker.state}")
            return
        _log.warning("worker %s: %s", worker.id, message.failure.message)
        if worker.remote and message.failure.code is Code.NOT_FOUND:
            # Its host lacks the file; another worker's has it.
            self._fleet.absences.note(worker.process, message.digest, now())
        else:
            self._dispatcher.load_failed(worker, message.failure, again=False)
        # It waits for this word, so that its reason cannot be overtaken by its death.
        self._dispatcher.end(worker, "its model could not be loaded")
        self._dispatcher.advance()

    def _on_answer(self, worker: Worker, message: Discovered | Measured | JobFailed) -> None:
        self._dispatcher.probes.on_answer(worker, message)
        self._dispatcher.advance()

    def _on_released(self, worker: Worker, message: Released) -> None:
        worker.release((message.request, message.attempt))
        worker.last_used = worker.progressed = now()
        if worker.state is WorkerState.DRAINING and not worker.running:
            self._dispatcher.end(worker, "drained")
        self._dispatcher.advance_with(worker)

    def _on_cleared(self, worker: Worker, message: Cleared) -> None:
        worker.suspects.discard((message.request, message.attempt))
        self._dispatcher.advance()

    # Deaths

    def _worker_gone(self, worker: Worker) -> None:
        if self._forget(self._fleet.workers, worker) is None:
            return
        _log.log(
            logging.INFO if worker.state is WorkerState.ENDING else logging.WARNING,
            "worker %s (pid %d) is gone, it was %s",
            worker.id,
            worker.process.pid,
            worker.state,
        )
        if not worker.remote:
            self._fleet.note_departure(now())
        self._devices.release(worker.id)
        self._dispatcher.probes.on_gone(worker)
        if worker.state is WorkerState.LOADING:
            # It may have been killed by anybody: another one tries, a few times.
            self._dispatcher.load_broken(
                worker, "the worker process died over it; its file may be damaged", again=True
            )
        for key, frontend in worker.running.items():
            self._dispatcher.lose(key, frontend, died=True, alone=worker.blames(key))
        worker.enter(WorkerState.GONE, now())
        self._dispatcher.advance()

    def _frontend_gone(self, frontend: Frontend) -> None:
        if self._forget(self._fleet.frontends, frontend) is None:
            return
        _log.log(
            logging.INFO if frontend.draining else logging.WARNING,
            "frontend %s (pid %d) is gone",
            frontend.id,
            frontend.process.pid,
        )
        for waiting in self._fleet.waiting_of(frontend.id):
            self._fleet.remove_waiting(waiting.key)
        for worker in self._fleet.workers.values():
            for key, owner in worker.running.items():
                if owner == frontend.id:
                    self._router.send(worker.id, Cancel(*key))
        self._dispatcher.advance()

    def _forget(self, peers: dict[str, Any], peer: Peer) -> Peer | None:
        """Drops a peer; None when it was dropped before."""
        if peers.pop(peer.id, None) is None:
            return None
        self._router.forget(peer.id)
        self._deaths.forget(peer)
        return peer

    def _on_stuck(self, peer: str) -> None:
        """A peer took nothing for a long time."""
        if worker := self._fleet.workers.get(peer):
            self._dispatcher.kill(worker, "it takes no messages")
        elif frontend := self._fleet.frontends.get(peer):
            self._frontend_gone(frontend)

    # Time

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            try:
                self._tick()
            except Exception:
                # A fault in one look must not end all later ones.
                _log.exception("a tick failed")

    def _tick(self) -> None:
        moment = now()
        late = max(0.0, moment - self._ticked - TICK)
        self._ticked = moment
        # However little it is: what stands still again and again hears nobody for as long.
        self._fleet.forgive(late, moment)
        if late > STANDSTILL:
            _log.warning("this process stood still for %.1f s", late)
        self._devices.refresh()
        beat = SchedulerHeartbeat(self._boot_id)
        for worker in list(self._fleet.workers.values()):
            if worker.remote:
                worker.lacks = self._fleet.absences.of(worker.process, moment)
            if reason := self._trouble(worker, moment):
                if worker.state is WorkerState.LOADING:
                    # Where it took too long, another worker would only fare the same.
                    again = overdue(worker, self._settings, moment) is None
                    self._dispatcher.load_broken(worker, reason, again=again)
                self._dispatcher.kill(worker, reason)
            elif silent(worker, moment):
                # Not its model's fault: the host may be gone, or the network.
                self._dispatcher.kill(worker, "it is not heard of any more")
            elif not self._router.send(worker.id, beat) and unreachable(worker, moment):
                self._worker_gone(worker)
        for frontend in list(self._fleet.frontends.values()):
            if silent(frontend, moment):
                self._frontend_gone(frontend)
            else:
                self._router.send(frontend.id, beat)
        self._dispatcher.give_up_waiting()
        self._dispatcher.advance()

    def _trouble(self, worker: Worker, moment: float) -> str | None:
        """Why a worker has to be killed; None while it is well."""
        return (
            overdue(worker, self._settings, moment)
            or self._dispatcher.probes.trouble(worker, moment)
            or trouble(worker, self._settings, moment)
        )


async def run(settings: Settings) -> None:
    """Runs a scheduler until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    scheduler = Scheduler(settings)
    scheduler.start()
    try:
        await stop.wait()
    finally:
        scheduler.close()
