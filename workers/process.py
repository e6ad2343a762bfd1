"""A worker's one life: blank → loading → ready → draining → exit.

Blank, it has imported all that any model needs except llama_cpp, and waits. `Load` makes it a
replica of one model; `Unload`, a load that fails, or SIGTERM ends it, because the end of a process
is the one way to be sure that its memory is back. Its supervisor starts the next blank one.

    blank ──Load──▶ loading ──Loaded──▶ ready ──Unload──▶ exit 0
      │                ├────LoadFailed────│─────Unload──▶ exit 0
      ├──Discover, Measure──▶ loading ──answer──Unload──▶ exit 0
      └────────────────┴──────────────────┴─▶ draining ──nothing left, or the limit──▶ exit 0

SIGUSR1 or the scheduler has it drain: it tells the scheduler, which sends nothing more, finishes
what it has, and waits a moment for the scheduler's `Unload`, so that no request meets its end.

The main thread has the sockets and never computes; the engine has a thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any

import zmq

from ..protocol.channels import Dealer
from ..protocol.codec import VERSION
from ..protocol.errors import Code, PronkError
from ..protocol.lifecycle import Lifecycle
from ..protocol.logs import RateLimitedLog
from ..protocol.messages.devices import Discover, Measure
from ..protocol.messages.embedding import Embed, Embedded
from ..protocol.messages.failure import Failure
from ..protocol.messages.fleet import (
    BeginDraining,
    Draining,
    Hello,
    LoadedModel,
    PeerHeartbeat,
    Refused,
    RequestReport,
    Role,
    SchedulerHeartbeat,
    WhoAreYou,
    WorkerPhase,
)
from ..protocol.messages.generation import (
    Cancel,
    Chunk,
    Chunks,
    Failed,
    Finished,
    Generate,
    Lost,
    Started,
)
from ..protocol.messages.placement import (
    Cleared,
    Load,
    Loaded,
    LoadFailed,
    Outcome,
    Released,
    SetThreads,
    Unload,
)
from ..protocol.process import new_incarnation, own_identity
from ..protocol.recent import LONGEST_CHAIN, Recent
from ..protocol.settings import Settings
from . import warm  # noqa: F401  paid for while blank
from .echo import EchoReplica
from .frontends import FrontendLink
from .home import Home
from .inference.messages import WithNumbers
from .inference.replica import Replica
from .jobs import start_job

_log = logging.getLogger(__name__)

_HEARTBEAT_SECONDS = 1.0
_LINK_IDLE_SECONDS = 60.0
_LAST_WORDS_SECONDS = 1.0
"""Longest time that an exit waits for messages that are on their way."""

_TURN = 0.1
"""Seconds of a turn, in which what has come is heard. Where this process waits for another one it
counts turns: time in which it stood still itself has brought it nothing to hear."""

_ANSWER_TURNS = 50
"""Longest time that it waits for the scheduler's word that it may go."""

_MOVING_TURNS = 20
"""Longest time that the engine may take to leave the requests that go on elsewhere."""

_Key = tuple[str, int]
"""Request and attempt."""

_LIFE = Lifecycle(
    "worker",
    {
        WorkerPhase.BLANK: {WorkerPhase.LOADING, WorkerPhase.DRAINING},
        WorkerPhase.LOADING: {WorkerPhase.READY, WorkerPhase.DRAINING},
        WorkerPhase.READY: {WorkerPhase.DRAINING},
        WorkerPhase.DRAINING: set[WorkerPhase](),
    },
    _log,
)
"""What may follow what; the exit follows each."""


class Worker:
    """The main thread's part: talks to the scheduler and to frontends, commands the engine."""

    def __init__(self, settings: Settings, home: Home, name: str) -> None:
        self._name = name
        self._drain_timeout = settings.drain_timeout
        # A body grows a little on its way from JSON, and by the tokens of an earlier attempt.
        self._max_body = 2 * settings.max_generation_body
        self._home = home
        self._incarnation = new_incarnation()
        self._phase = WorkerPhase.BLANK
        self._model: LoadedModel | None = None
        self._replica: Replica | EchoReplica | None = None
        self._prefixes = Recent()
        self._running: dict[_Key, tuple[Generate | Embed, FrontendLink]] = {}
        self._suspects: set[_Key] = set()
        """Requests with which an earlier worker died, before their first token here."""
        self._links: dict[str, FrontendLink] = {}
        self._limit: asyncio.TimerHandle | None = None
        """Ends the draining; None before it, and once the limit has passed."""
        self._boot_id: str | None = None
        self._ignored = RateLimitedLog(_log)
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self._scheduler = Dealer(
            home.scheduler,
            self._incarnation,
            self._on_scheduler,
            self._on_scheduler_stuck,
            keys=home.keys,
            max_body=self._max_body,
        )

    async def run(self) -> int:
        """Lives until told to end; returns the exit status. Nothing of it may be used after."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._leave, 0)
        self._loop.add_signal_handler(signal.SIGUSR1, self._drain)
        self._say_hello()
        heart = asyncio.create_task(self._beat())
        try:
            return await self._exit
        finally:
            heart.cancel()
            for link in self._links.values():
                link.close(_LAST_WORDS_SECONDS)
            self._scheduler.close(_LAST_WORDS_SECONDS)

    def _leave(self, status: int) -> None:
        if not self._exit.done():
            self._exit.set_result(status)

    def _after(self, turns: int, action: Callable[[], None]) -> None:
        """Has something done after so many turns."""
        if turns:
            self._loop.call_later(_TURN, self._after, turns - 1, action)
        else:
            action()

    def _enter(self, phase: WorkerPhase) -> None:
        self._phase = _LIFE.step(self._name, self._phase, phase)

    # --- the scheduler

    def _say_hello(self) -> None:
        reports = [
            RequestReport(*key, header.frontend, self._incarnation, suspect=key in self._suspects)
            for key, (header, _) in self._running.items()
        ]
        self._scheduler.send(
            Hello(
                version=VERSION,
                role=Role.WORKER,
                incarnation=self._incarnation,
                process=own_identity(),
                phase=self._phase,
                model=self._model,
                requests=reports,
                name=self._name,
                prefixes=list(self._prefixes),
            )
        )

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            steps = self._replica.steps if self._replica else 0
            self._scheduler.send(PeerHeartbeat(steps, len(self._running)))
            self._close_idle_links()
            engine_died = self._replica and not self._replica.alive
            if engine_died and self._model:
                _log.error("the engine's thread ended")
                self._leave(1)

    def _on_scheduler(self, message: Any, body: bytes) -> None:
        match message:
            case Generate() | Embed():
                self._accept(message, body)
            case Cancel():
                self._cancel(message)
            case SchedulerHeartbeat(boot_id):
                known, self._boot_id = self._boot_id, boot_id
                if known not in (None, boot_id):
                    self._say_hello()
            case WhoAreYou(boot_id):
                self._boot_id = boot_id
                self._say_hello()
            case Load() if self._phase is WorkerPhase.BLANK:
                self._load(message)
            case Discover() | Measure() if self._phase is WorkerPhase.BLANK:
                self._enter(WorkerPhase.LOADING)
                start_job(message, self._loop, self._on_answer)
            case SetThreads() if self._replica:
                self._replica.set_threads(message)
            case Unload(reason):
                self._unload(reason)
            case BeginDraining(timeout):
                self._drain(timeout)
            case Refused(failure):
                _log.error("the scheduler refused this worker: %s", failure.message)
                self._leave(1)
            case _:
                name = type(message).__name__
                self._ignored.warning("ignored message", f"{name} while {self._phase}")

    def _on_scheduler_stuck(self) -> None:
        # Something it must know may be among what was dropped: introduce ourselves again.
        self._boot_id = ""

    # --- the model

    def _load(self, load: Load) -> None:
        _log.info("loading %s", load.model.name)
        self._enter(WorkerPhase.LOADING)
        if not load.model.weights:
            self._replica = EchoReplica(load, self._max_body, self._on_engine)
            return
        try:
            load = self._home.load(load)
        except PronkError as error:
            self._on_engine([LoadFailed(load.model.digest, Failure.of(error))])
            return
        self._replica = Replica(load, self._max_body, self._on_engine)

    def _unload(self, reason: str) -> None:
        _log.info("unloading: %s", reason)
        failure = Failure(
            Code.UNAVAILABLE, "the model was unloaded under this request; try again", 1.0
        )
        for header, link in self._running.values():
            link.send(Lost(header.request, header.attempt, failure))
        self._leave(0)

    # --- draining

    def _drain(self, timeout: float | None = None) -> None:
        """Takes nothing new from now on, and exits when all is done or `timeout` seconds are over.

        Told again, it only moves the limit.
        """
        if self._phase is not WorkerPhase.DRAINING:
            self._enter(WorkerPhase.DRAINING)
            self._scheduler.send(Draining())
        elif self._limit is None:
            return  # it has passed: everything is leaving already
        else:
            self._limit.cancel()
        seconds = self._drain_timeout if timeout is None else max(timeout, 0.0)
        self._limit = self._loop.call_later(seconds, self._move_rest)
        self._leave_when_idle()

    def _move_rest(self) -> None:
        """Gives back what is not done: its owners have other workers continue it."""
        self._limit = None
        if self._running:
            _log.info("draining took too long: %d requests go elsewhere", len(self._running))
        failure = Failure(Code.UNAVAILABLE, "its worker was drained; try again", 1.0)
        for header, link in self._running.values():
            # First of all, so that no token follows what its owner takes for the end.
            self._cancel(Cancel(header.request, header.attempt))
            link.send(Lost(header.request, header.attempt, failure))
        self._after(_MOVING_TURNS, lambda: self._unload("drained"))
        self._leave_when_idle()

    def _leave_when_idle(self) -> None:
        """Waits a moment for the scheduler's word: what it sent before it knew is taken first."""
        if self._phase is WorkerPhase.DRAINING and not self._running:
            self._after(_ANSWER_TURNS, self._leave_if_idle)

    def _leave_if_idle(self) -> None:
        if not self._running:
            self._leave(0)

    @property
    def _takes_requests(self) -> bool:
        return self._phase is not WorkerPhase.DRAINING or self._limit is not None

    def _on_answer(self, answer: Any) -> None:
        """Sends what a job brought: the last thing that this process does."""
        self._scheduler.send(answer)
        # The answer is Unload: a death that overtakes it would hide it.
        self._after(_ANSWER_TURNS, lambda: self._leave(0))

    # --- requests

    def _accept(self, header: Generate | Embed, body: bytes) -> None:
        link = self._link(header)
        if link is None:
            self._release_unstarted(header)
            return
        key = (header.request, header.attempt)
        if key not in self._running:
            if self._replica is None or not self._can_take(header):
                self._bounce(header, link)
                return
            self._running[key] = (header, link)
            if header.suspect:
                self._suspects.add(key)
            if isinstance(header, Generate):
                self._prefixes.add(header.prefix[:LONGEST_CHAIN])
            self._replica.submit(header, body)
        link.send(Started(*key, self._incarnation, self._context_of(header)))

    def _context_of(self, header: Generate | Embed) -> int:
        """Tokens of context that a request has here."""
        there = self._model.context_length if self._model else 0
        return min(there, header.context_length or there)

    def _can_take(self, header: Generate | Embed) -> bool:
        return (
            self._model is not None
            and self._takes_requests
            and self._model.digest == header.digest
            and len(self._running) < self._model.slots
        )

    def _bounce(self, header: Generate | Embed, link: FrontendLink) -> None:
        """Returns a request that this worker cannot take: the scheduler saw another world."""
        self._ignored.warning("bounced request", f"while {self._phase}")
        failure = Failure(Code.UNAVAILABLE, "the model moved under this request; try again", 1.0)
        link.send(Lost(header.request, header.attempt, failure))
        self._release_unstarted(header)

    def _release_unstarted(self, header: Generate | Embed) -> None:
        self._scheduler.send(Released(header.request, header.attempt, Outcome.FAILED, 0))

    def _cancel(self, cancel: Cancel) -> None:
        if self._replica and (cancel.request, cancel.attempt) in self._running:
            self._replica.cancel(cancel)

    # --- frontends

    def _link(self, header: Generate | Embed) -> FrontendLink | None:
        try:
            endpoint = self._home.reply_to(header)
            if link := self._links.get(endpoint):
                return link
            link = FrontendLink(
                endpoint,
                self._incarnation,
                self._on_frontend,
                self._on_frontend_stuck,
                self._home.keys,
            )
        except (zmq.ZMQError, ValueError) as error:
            self._ignored.warning("unusable endpoint", str(error))
            return None
        self._links[endpoint] = link
        return link

    def _on_frontend(self, link: FrontendLink, message: Any) -> None:
        match message:
            case Cancel(request, attempt) if (request, attempt) in self._running and self._running[
                request, attempt
            ][1] is link:
                self._cancel(message)
            case Cancel():
                pass  # it crossed the request's end
            case _:
                self._ignored.warning("ignored message", f"{type(message).__name__} of a frontend")

    def _on_frontend_stuck(self, link: FrontendLink) -> None:
        _log.warning("a frontend takes nothing any more; its requests are cancelled")
        self._links.pop(link.endpoint, None)
        for header, of_link in self._running.values():
            if of_link is link:
                self._cancel(Cancel(header.request, header.attempt))

    def _close_idle_links(self) -> None:
        busy = {link.endpoint for _, link in self._running.values()}
        oldest = time.monotonic() - _LINK_IDLE_SECONDS
        for link in list(self._links.values()):
            if link.endpoint not in busy and link.last_used < oldest:
                link.close()
                del self._links[link.endpoint]

    # --- the engine

    def _on_engine(self, messages: list[Any]) -> bool:
        """Passes on what the replica says: one `Chunks` for each frontend, then what ended.

        Returns whether the frontends take it as it comes.
        """
        if self._exit.done():
            return True  # the sockets are closed, or about to be
        keeps_up = True
        chunks: dict[str, list[Chunk]] = {}
        for message in messages:
            if isinstance(message, Chunk):
                _, link = self._running[message.request, message.attempt]
                chunks.setdefault(link.endpoint, []).append(message)
        for endpoint, of_frontend in chunks.items():
            if link := self._links.get(endpoint):
                link.send(Chunks(of_frontend))
                keeps_up = keeps_up and not link.waits
        if self._suspects:
            self._clear(chunk for of_frontend in chunks.values() for chunk in of_frontend)
        for message in messages:
            match message:
                case Finished(request, attempt) | Failed(request, attempt):
                    self._running[request, attempt][1].send(message)
                case WithNumbers(Embedded(request, attempt) as embedded, numbers):
                    self._running[request, attempt][1].send(embedded, numbers)
                case Released(request, attempt):
                    del self._running[request, attempt]
                    self._suspects.discard((request, attempt))
                    self._scheduler.send(message)
                    self._leave_when_idle()
                case Loaded(model) if self._phase is WorkerPhase.LOADING:
                    _log.info("%s is ready, %d MiB", model.name, model.size >> 20)
                    self._enter(WorkerPhase.READY)
                    self._model = model
                    self._scheduler.send(message)
                case LoadFailed():
                    _log.error("%s", message.failure.message)
                    self._scheduler.send(message)
                    # The answer is Unload: a death that overtakes the reason would hide it.
                    self._after(_ANSWER_TURNS, lambda: self._leave(0))
                case _:
                    pass
        return keeps_up

    def _clear(self, chunks: Iterable[Chunk]) -> None:
        """Tells the scheduler which suspects have got further than their earlier attempts."""
        for chunk in chunks:
            key = (chunk.request, chunk.attempt)
            if chunk.tokens and key in self._suspects:
                self._suspects.remove(key)
                self._scheduler.send(Cleared(*key))
