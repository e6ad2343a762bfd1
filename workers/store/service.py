"""The store process: answers questions about the model library, and changes it.

It alone reads and writes the library. Questions come over one socket, are answered in threads
because disks may be slow, and can all be asked again: whoever gets no answer repeats the question
under the same `call`. So this process keeps nothing but what is on the disk, and may be killed at
any instant. Files come over a socket of their own (`uploads`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import uvloop
import zmq

from ...protocol.channels import Router
from ...protocol.errors import Code, PronkError
from ...protocol.logs import RateLimitedLog, configure_logging
from ...protocol.messages.changes import StopCall
from ...protocol.messages.failure import Failure
from ...protocol.messages.library import CallFailed, DescribeModel, ResolveModel
from ...protocol.role import CANNOT_START
from ...protocol.settings import Settings, load_settings
from ...protocol.state import StateDirectory
from ...protocol.withheld import advice
from .builtin import BuiltinModel
from .catalog import QUESTIONS, Answer, Catalog, Question
from .changes import ORDERS, Changes, Run
from .deaths import Death, LastWords
from .deliveries import Deliveries
from .layout import Library
from .looking.looker import Looker
from .orders import Shelf
from .pulling.journal import boot_id
from .pulling.pull import Puller
from .registry.client import Registry
from .suspects import Suspects
from .uploads import Uploads
from .writing import Writer

_log = logging.getLogger(__name__)

THREADS = 2
"""Questions of each lane that are answered at the same time."""
MAX_NAMES = 4096
"""Names and digests that may be asked for at a time; the next ones are told to come back. Hundreds
of clients that begin together each ask for one, and none of them takes long."""
MAX_QUESTIONS = 128
"""The same for lists and descriptions, which take longer."""

_LAST_WORDS_SECONDS = 1.0
"""Longest time that an exit waits for answers that are on their way."""


class _Lane:
    """Threads that answer some kinds of questions, so that others do not wait behind them."""

    def __init__(self, name: str) -> None:
        self.threads = ThreadPoolExecutor(THREADS, f"store-{name}")
        self.asked: set[tuple[str, str]] = set()
        """Peer and call of every question that is here."""


class Store:
    """Takes questions from any number of peers and sends each one answer. Lives on one event loop.

    What every request needs (which model is it, where does it lie) has a lane of its own beside
    lists and descriptions for people, which take longer and which anybody may ask for at any rate.
    What only a process can find out, of a file or a template that nobody has looked at yet, keeps
    no thread waiting. A question that is repeated while it is being answered is dropped: its answer
    is on its way. Changes are carried out as `runs` says, by the kind of their order.
    """

    def __init__(
        self,
        endpoint: str,
        catalog: Catalog,
        runs: Mapping[type[Any], Run] | None = None,
        *,
        suspects: Suspects | None = None,
        looker: Looker | None = None,
    ) -> None:
        """`looker` takes looks for the catalog; another one is made where none is given."""
        self._catalog = catalog
        self._looker = looker or Looker(catalog.headers, catalog.templates)
        self._short = _Lane("short")
        self._long = _Lane("long")
        self._noted = RateLimitedLog(_log)
        self._tasks: set[asyncio.Task[None]] = set()
        self._changes = Changes(runs or {}, self._post, suspects)
        self._router = Router(endpoint, self._received, self._changes.forget)

    def close(self) -> None:
        """Stops answering, and ends changes. What the threads are doing now is left to end by
        itself.
        """
        self._changes.close()
        self._router.close(_LAST_WORDS_SECONDS)
        self._looker.close()
        for task in self._tasks:
            task.cancel()
        for lane in (self._short, self._long):
            lane.threads.shutdown(wait=False, cancel_futures=True)

    @property
    def changes_under_way(self) -> int:
        """Changes that have not ended yet."""
        return self._changes.under_way

    async def wait_closed(self) -> None:
        """Waits, not for long, until changes that were ended have let go of their files."""
        await self._changes.wait_closed()

    def _post(self, peer: str, message: Any) -> None:
        self._router.send(peer, message)

    def _received(self, peer: str, message: Any, body: bytes) -> None:
        if isinstance(message, (*ORDERS, StopCall)):
            self._changes.asked(peer, message)
            return
        if not isinstance(message, QUESTIONS):
            self._noted.warning("not a question", f"{type(message).__name__} from {peer}")
            return
        short = isinstance(message, ResolveModel | DescribeModel)
        lane = self._short if short else self._long
        if (peer, message.call) in lane.asked:
            return
        if len(lane.asked) >= (MAX_NAMES if short else MAX_QUESTIONS):
            busy = Failure(Code.UNAVAILABLE, "the model library is busy; try again", 1.0)
            self._router.send(peer, CallFailed(message.call, busy))
            return
        lane.asked.add((peer, message.call))
        task = asyncio.create_task(self._answer(lane, peer, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, lane: _Lane, peer: str, question: Question) -> None:
        try:
            answer = await self._find(lane, question)
        finally:
            lane.asked.discard((peer, question.call))
        self._router.send(peer, answer)

    async def _find(self, lane: _Lane, question: Question) -> Answer | CallFailed:
        loop = asyncio.get_running_loop()

        async def ask(content: bool) -> Answer:
            look_up = partial(self._catalog.answer, question, content=content)
            return await loop.run_in_executor(lane.threads, look_up)

        try:
            return await self._looker.answered(ask)
        except PronkError as error:
            return CallFailed(question.call, Failure.of(error))
        except Exception:
            _log.exception("%s failed", type(question).__name__)
            fault = Failure(
                Code.INTERNAL, "the model library could not answer; see the server's log"
            )
            return CallFailed(question.call, fault)


async def serve(settings: Settings, death: Death = Death.UNKNOWN) -> None:
    """Answers questions until SIGTERM or SIGINT. `death` is that of the process before."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    builtin = BuiltinModel() if settings.demo_model == "on" else None
    echo = settings.echo_model == "on"
    library, writer = Library(settings.models), Writer(settings.models)
    registry = Registry(settings)
    puller = Puller(writer, registry, connections=settings.pull_connections)
    shelf = Shelf(library, writer, builtin, echo=echo)
    catalog = Catalog(library, builtin, echo=echo)
    looker = Looker(catalog.headers, catalog.templates)
    deliveries = Deliveries(library, writer, builtin, registry, puller, looker)
    runs = {**shelf.runs(), **deliveries.runs()}
    there = "" if settings.models.is_dir() else ", which is not there: empty"
    _log.info("the model library is %s%s", settings.models, there)
    tidying = asyncio.create_task(asyncio.to_thread(writer.tidy))
    state = StateDirectory(settings.state)
    suspects = Suspects(state.orders, boot_id(), death)
    store = Store(state.store, catalog, runs, suspects=suspects, looker=looker)
    uploads = Uploads(state.uploads, writer)
    try:
        await stop.wait()
    finally:
        tidying.cancel()
        store.close()
        uploads.close()
        await asyncio.gather(store.wait_closed(), uploads.wait_closed())
        puller.close()
        await registry.close()


async def _serve_and_exit(settings: Settings, last_words: LastWords) -> None:
    await serve(settings, last_words.begin())
    # A thread may hang in a dead network disk for ever, or read a file of hundreds of gigabytes,
    # and asyncio would wait for it. Nothing here needs an orderly end.
    logging.shutdown()
    os._exit(0)


def main() -> None:
    """The store process from start to end. Exit status 78, after one line, if it cannot start."""
    try:
        settings = load_settings()
        configure_logging("store", settings.log_level)
        state = StateDirectory(settings.state)
        state.prepare()
        state.lock("store")
        if warning := advice(settings):
            _log.warning("%s", warning)
    except PronkError as error:
        print(error.message, file=sys.stderr)
        sys.exit(CANNOT_START)
    last_words = LastWords(state.last_words("store"))
    try:
        uvloop.run(_serve_and_exit(settings, last_words))
    except BaseException as error:
        last_words.note(error)
        # Whoever gave the order that ends this process was told so, and would repeat it unheard.
        zmq.Context.instance().destroy(linger=0)
        raise
