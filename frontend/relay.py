"""Carries requests to the scheduler and answers from the workers back, for every dialect alike.

The frontend owns a request from its acceptance to its last byte. It submits it, takes the answer
straight from the worker, submits it again when the scheduler was replaced or its worker died, with
the tokens that came so far, and cancels it when its client went away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..protocol.channels import DEFAULT_OUTBOX_BYTES, Router
from ..protocol.codec import MAX_HEADER, VERSION
from ..protocol.deadline import deadline_exceeded, is_over
from ..protocol.doors import Doors, open_remote
from ..protocol.errors import Code, PronkError
from ..protocol.logs import RateLimitedLog
from ..protocol.messages.embedding import Embed, Embedded
from ..protocol.messages.failure import Failure
from ..protocol.messages.fleet import BeginDraining, Draining, Hello, RequestReport, Role
from ..protocol.messages.generation import (
    Cancel,
    Chunk,
    Chunks,
    Evict,
    Failed,
    Finished,
    Generate,
    Lost,
    Preload,
    Started,
)
from ..protocol.messages.status import ListRunning, RunningList
from ..protocol.process import new_incarnation, own_identity
from ..protocol.settings import Settings
from ..protocol.state import StateDirectory
from .exchange import FATAL_DEATHS, Answer, Exchange, Phase
from .link import GONE, SchedulerLink, unavailable
from .stream import Stream, Verdict

_log = logging.getLogger(__name__)

QUESTION_SECONDS = 5.0
"""Longest wait for an answer that the scheduler has at hand."""

PRELOAD_QUEUEING_SECONDS = 300.0
"""Longest wait of a load for a free worker, beside the time that loading itself may take."""

SILENCE = 15.0
"""Seconds without a word about a request after which the scheduler is asked who has it."""

MOST_TOKEN_BYTES = MAX_HEADER - 64 * 1024
"""Bytes that the tokens of earlier attempts may add to a body: more than a million of them."""

_PATIENT_ATTEMPTS = 2
_LONGEST_PAUSE = 2.0
"""Attempts that are submitted at once when a worker gives a request back; before each later one
there is a pause, twice as long as the one before, up to so many seconds."""


class Relay:
    """Everything that this frontend has in flight.

    `on_refused` hears why the scheduler does not accept this process, which then has no purpose;
    `on_drain` hears that it is to leave, and the seconds that it has, or None for the settings'.
    """

    def __init__(
        self,
        settings: Settings,
        on_refused: Callable[[Failure], None] = lambda failure: None,
        on_drain: Callable[[float | None], None] = lambda timeout: None,
        name: str = "",
    ) -> None:
        self._on_drain = on_drain
        self._name = name
        self._draining = False
        self._settings = settings
        self._exchanges: dict[str, Exchange] = {}
        self._held_bytes = 0
        """Of the bodies of all exchanges, as they came."""
        self._odd = RateLimitedLog(_log)
        self._closing: PronkError | None = None
        self.incarnation = new_incarnation()
        state = StateDirectory(settings.state)
        self.endpoint = state.frontend(self.incarnation)
        self._identity = own_identity()
        remote = open_remote(
            settings,
            range(1, settings.frontends + 1),
            self._from_worker,
            on_stuck=self._forget_worker,
        )
        self.tcp_endpoint = remote.endpoint if remote else None
        self._router = Doors(Router(self.endpoint, self._from_worker, self._forget_worker), remote)
        self._link = SchedulerLink(
            state.scheduler,
            self.incarnation,
            hello=self._hello,
            on_announced=self._submit_waiting,
            on_message=self._from_scheduler,
            on_beat=self._beat,
            on_refused=on_refused,
            outbox_bytes=max(DEFAULT_OUTBOX_BYTES, 2 * settings.max_generation_body),
        )

    def submit(
        self, header: Generate, body: bytes, on_overflow: Callable[[], None] = lambda: None
    ) -> Stream:
        """Sends a request on its way; `abandon` or the end of the stream releases it.

        `on_overflow` is called when the client left more than `max_stream_buffer` bytes waiting.
        Raises `PronkError` when the body is over its bound, or nothing can be submitted now.
        """
        stream = Stream(header, body, self._settings.max_stream_buffer, on_overflow)
        self._begin(stream)
        return stream

    def submit_embed(self, header: Embed, body: bytes) -> Answer:
        """Sends a request that has one answer on its way, as `submit` does."""
        answer = Answer(header, body)
        self._begin(answer)
        return answer

    def _begin(self, exchange: Exchange) -> None:
        body = exchange.body
        if self._closing:
            raise self._closing
        if len(body) > self._settings.max_generation_body:
            raise PronkError(
                Code.TOO_LARGE,
                f"the request takes {len(body)} bytes, the limit is "
                f"{self._settings.max_generation_body} (PRONK_MAX_GENERATION_BODY)",
            )
        self._make_room(body)
        self._exchanges[exchange.header.request] = exchange
        self._held_bytes += exchange.size
        self._submit(exchange)

    def abandon(self, exchange: Exchange) -> None:
        """Ends an exchange that nobody waits for any more. May be called for one that has ended."""
        if self._exchanges.get(exchange.header.request) is exchange:
            self._end(exchange, PronkError(Code.CANCELLED, "the client went away"))

    async def preload(self, question: Preload) -> None:
        """Returns when the model is ready. Raises `PronkError` when it does not become so."""
        patience = self._settings.load_timeout + PRELOAD_QUEUEING_SECONDS
        try:
            await self._ask(question.request, question, patience)
        except BaseException:
            # Whoever asked is gone or has given up: the load need not wait for a worker any more.
            self._link.tell(Cancel(question.request, 1))
            raise

    async def evict(self, question: Evict) -> None:
        """Returns when no new request reaches the model as it was loaded."""
        await self._ask(question.request, question, QUESTION_SECONDS)

    async def list_running(self, question: ListRunning) -> RunningList:
        """The loaded models. Raises `PronkError` while the scheduler is down."""
        return await self._ask(question.call, question, QUESTION_SECONDS)

    def announce_draining(self) -> None:
        """Tells every scheduler from now on that this process is about to leave."""
        self._draining = True
        self._link.send(Draining())

    def end_all(self, error: PronkError) -> None:
        """Ends everything with `error`, and refuses what comes after it."""
        self._closing = error
        for exchange in list(self._exchanges.values()):
            self._end(exchange, error)
        self._link.fail_questions(error)

    def close(self) -> None:
        """Closes the sockets and removes this frontend's from the state directory."""
        self._link.close()
        self._router.close()
        with contextlib.suppress(FileNotFoundError):
            Path(self.endpoint.removeprefix("ipc://")).unlink()

    def _make_room(self, body: bytes) -> None:
        """Raises `PronkError` where the request cannot be kept until it is answered.

        How many may wait is the scheduler's to decide while it is there.
        """
        if self._link.silence > GONE:
            raise unavailable()
        if self._held_bytes + len(body) > self._settings.max_queue_bytes:
            raise PronkError(
                Code.QUEUE_FULL,
                "server busy, please try again: the requests under way take too much memory",
                retry_after=5.0,
            )
        if self._link.up:
            return
        waiting = sum(exchange.phase is Phase.WAITING for exchange in self._exchanges.values())
        if waiting >= self._settings.max_queue:
            raise PronkError(
                Code.QUEUE_FULL,
                "server busy, please try again: too many requests wait for the scheduler's return",
                retry_after=5.0,
            )

    async def _ask(self, key: str, question: Any, patience: float) -> Any:
        if self._closing:
            raise self._closing
        return await self._link.ask(key, question, patience)

    # Towards the scheduler

    def _hello(self) -> Hello:
        return Hello(
            version=VERSION,
            role=Role.FRONTEND,
            incarnation=self.incarnation,
            process=self._identity,
            endpoint=self.endpoint,
            name=self._name,
            requests=[
                RequestReport(*exchange.key, frontend=self.incarnation, worker=exchange.worker)
                for exchange in self._exchanges.values()
            ],
        )

    def _submit_waiting(self) -> None:
        if self._draining:
            self._link.send(Draining())
        for exchange in list(self._exchanges.values()):
            if exchange.phase is Phase.WAITING:
                self._submit(exchange)

    def _submit(self, exchange: Exchange) -> None:
        if not self._link.send(exchange.header, exchange.body):
            self._end(exchange, unavailable())

    def _beat(self) -> int:
        if self._link.silence > GONE:
            for exchange in list(self._exchanges.values()):
                if exchange.phase is Phase.WAITING:
                    self._end(exchange, unavailable())
        moment = time.time()
        for exchange in list(self._exchanges.values()):
            if is_over(exchange.header.deadline, moment):
                self._end(exchange, deadline_exceeded())
        if [exchange for exchange in self._exchanges.values() if exchange.is_silent(SILENCE)]:
            # Its end may have been lost, where our socket could not be reached.
            self._link.announce_again()
        return len(self._exchanges)

    def _from_scheduler(self, message: Any) -> None:
        match message:
            case BeginDraining(timeout):
                self._on_drain(timeout)
            case Failed(request, attempt, failure):
                if exchange := self._current(request, attempt):
                    self._finish(exchange, failure.error())
            case Lost(request, attempt, failure, died, alone):
                if exchange := self._current(request, attempt):
                    self._attempt_lost(exchange, failure.error(), died=died, alone=alone)
            case _:
                self._odd.warning("unexpected message", f"{type(message).__name__} (scheduler)")

    # From the workers

    def _from_worker(self, worker: str, message: Any, body: bytes) -> None:
        match message:
            case Chunks(chunks):
                for chunk in chunks:
                    self._on_chunk(worker, chunk)
            case Started(request, attempt, _, context_length):
                stream = self._awaited(worker, request, attempt)
                if isinstance(stream, Stream):
                    stream.placed(context_length)
            case Finished(request, attempt):
                stream = self._awaited(worker, request, attempt)
                if isinstance(stream, Stream) and stream.finish(message) is Verdict.GOOD:
                    self._forget(stream)
                elif stream:
                    self._attempt_lost(stream, _incomplete())
            case Embedded(request, attempt):
                answer = self._awaited(worker, request, attempt)
                if isinstance(answer, Answer) and answer.finish(message, body):
                    self._forget(answer)
                elif answer:
                    self._attempt_lost(answer, _incomplete())
            case Failed(request, attempt, failure):
                if exchange := self._claimed(worker, request, attempt):
                    self._finish(exchange, failure.error())
            case Lost(request, attempt, failure):
                if exchange := self._claimed(worker, request, attempt):
                    self._attempt_lost(exchange, failure.error())
            case _:
                self._odd.warning("unexpected message", f"{type(message).__name__} from {worker}")

    def _on_chunk(self, worker: str, chunk: Chunk) -> None:
        stream = self._exchanges.get(chunk.request)
        # For all but the first one this is all there is to ask.
        if not stream or stream.worker != worker or stream.header.attempt != chunk.attempt:
            stream = self._awaited(worker, chunk.request, chunk.attempt)
        if not isinstance(stream, Stream):
            return
        verdict = stream.add(chunk)
        if verdict is Verdict.GOOD:
            return
        match verdict:
            case Verdict.GAP:
                self._cancel(stream)
                self._attempt_lost(stream, _incomplete())
            case Verdict.OVERFLOW:
                self._odd.warning("slow client", "dropped beyond PRONK_MAX_STREAM_BUFFER")
                self._end(
                    stream,
                    PronkError(
                        Code.SLOW_CLIENT, "the answer was read too slowly and has been dropped"
                    ),
                )
                stream.on_overflow()

    def _awaited(self, worker: str, request: str, attempt: int) -> Exchange | None:
        """The exchange that this worker's message belongs to, running from now on.

        What nobody waits for is cancelled: its client left while the request was on its way.
        """
        if exchange := self._claimed(worker, request, attempt):
            exchange.started(worker)
            return exchange
        self._router.send(worker, Cancel(request, attempt))
        return None

    def _claimed(self, worker: str, request: str, attempt: int) -> Exchange | None:
        """The exchange that this worker may speak for: two have it after some restarts."""
        exchange = self._current(request, attempt)
        return exchange if exchange and exchange.worker in (None, worker) else None

    def _forget_worker(self, worker: str) -> None:
        self._odd.warning("stuck worker", f"{worker} takes no messages")

    # Both

    def _current(self, request: str, attempt: int) -> Exchange | None:
        exchange = self._exchanges.get(request)
        return exchange if exchange and exchange.header.attempt == attempt else None

    def _attempt_lost(
        self, exchange: Exchange, error: PronkError, *, died: bool = False, alone: bool = False
    ) -> None:
        if not exchange.try_again(died=died, alone=alone):
            _log.warning("request %s: attempt %d was lost, and none follows", *exchange.key)
            self._finish(exchange, _blamed() if exchange.blamed else error)
            return
        if len(exchange.body) > self._settings.max_generation_body + MOST_TOKEN_BYTES:
            self._finish(exchange, error)
            return
        _log.info("request %s: attempt %d follows a lost one", *exchange.key)
        pauses = 0 if died else exchange.header.attempt - 1 - _PATIENT_ATTEMPTS
        if pauses <= 0:
            self._submit(exchange)
            return
        # Whoever gives it back again and again sees another world than the scheduler for a moment.
        pause = min(0.05 * 2 ** (pauses - 1), _LONGEST_PAUSE)
        asyncio.get_running_loop().call_later(pause, self._submit_late, *exchange.key)

    def _submit_late(self, request: str, attempt: int) -> None:
        exchange = self._current(request, attempt)
        if exchange and exchange.phase is Phase.WAITING:
            self._submit(exchange)

    def _finish(self, exchange: Exchange, error: PronkError) -> None:
        self._forget(exchange)
        exchange.fail(error)

    def _forget(self, exchange: Exchange) -> None:
        if self._exchanges.pop(exchange.header.request, None):
            self._held_bytes -= exchange.size

    def _end(self, exchange: Exchange, error: PronkError) -> None:
        """Ends an exchange that others may still be working on."""
        self._cancel(exchange)
        self._finish(exchange, error)

    def _cancel(self, exchange: Exchange) -> None:
        message = Cancel(*exchange.key)
        if exchange.worker:
            self._router.send(exchange.worker, message)
        self._link.tell(message)


def _blamed() -> PronkError:
    return PronkError(
        Code.WORKER_LOST,
        f"the process that worked on this request died {FATAL_DEATHS} times in a row at the same "
        "place; it is not tried again. Another prompt or other options may pass; the server's log "
        "has the details",
    )


def _incomplete() -> PronkError:
    return PronkError(Code.WORKER_LOST, "a part of the answer was lost on its way; try again")
