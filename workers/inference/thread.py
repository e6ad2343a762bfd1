"""The thread in which a model computes, beside the event loop.

llama.cpp computes without Python's lock: while a step computes, the event loop turns the tokens of
the step before into text and sends them. Commands are read between steps and never delay one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any

from ...protocol.errors import Code, PronkError
from ...protocol.host import usable_threads
from ...protocol.messages.embedding import Embed
from ...protocol.messages.placement import SetThreads
from .embedding_inputs import EmbedInputs
from .sequence import Key, Sequence

if TYPE_CHECKING:
    from .embedder import Embedder
    from .engine import Engine, Step
    from .llama import Model

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Computers:
    """All that computes with one model. While both have work, each gets half of the time."""

    engine: Engine | None
    """None for a model that writes no text."""
    embedder: Embedder
    model: Model

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return self.embedder.busy or (self.engine is not None and self.engine.busy)

    def set_threads(self, threads: int) -> None:
        """Computes with so many threads from the next step on."""
        if self.engine:
            self.engine.context.set_threads(usable_threads(threads))
        self.embedder.set_threads(threads)

    @property
    def steps(self) -> int:
        """Steps so far."""
        return self.embedder.steps + (self.engine.steps if self.engine else 0)


@dataclass(frozen=True, slots=True)
class EmbedJob:
    """A request for vectors."""

    header: Embed
    inputs: EmbedInputs


_Command = Sequence | EmbedJob | SetThreads | Key
"""A request, how to compute, or the key of a request that is cancelled."""


class EngineThread(threading.Thread):
    """Loads a model, then computes with it for ever.

    All callbacks are called in this thread: `on_loaded(computers)` or `on_failed(error)` once;
    `on_step(step)` when a step of the engine brought something, `on_messages(messages)` when one of
    the embedder did.
    """

    def __init__(
        self,
        load: Callable[[], Computers],
        on_loaded: Callable[[Computers], None],
        on_failed: Callable[[PronkError], None],
        on_step: Callable[[Step], None],
        on_messages: Callable[[list[Any]], None],
    ) -> None:
        super().__init__(name="engine", daemon=True)
        self._load = load
        self._on_loaded = on_loaded
        self._on_failed = on_failed
        self._on_step = on_step
        self._on_messages = on_messages
        # No SimpleQueue: its `get` waits for ever where the timeout is over before the wait begins,
        # as a short one may be on a busy machine (CPython 3.11).
        self._commands: Queue[_Command] = Queue()
        self._computers: Computers | None = None

    @property
    def steps(self) -> int:
        """Changes as long as there is progress. May be read by any thread."""
        return self._computers.steps if self._computers else 0

    def add(self, work: Sequence | EmbedJob) -> None:
        """Hands over a request. The last word about a sequence is a step that has it among `left`,
        about a job its `Released`.
        """
        self._commands.put(work)

    def cancel(self, key: Key) -> None:
        """Ends a request before the next step, if it is still there."""
        self._commands.put(key)

    def set_threads(self, command: SetThreads) -> None:
        """Has the next step, and all after it, computed with another number of threads."""
        self._commands.put(command)

    def run(self) -> None:
        """The thread's life: ends only where loading fails."""
        try:
            computers = self._load()
        except PronkError as error:
            self._on_failed(error)
            return
        except BaseException:  # a panic in a library written in Rust is no Exception
            _log.exception("loading failed")
            self._on_failed(PronkError(Code.LOAD_FAILED, "an error in the server; see its log"))
            return
        self._computers = computers
        self._on_loaded(computers)
        engine, embedder = computers.engine, computers.embedder
        ahead = 0.0
        """Seconds that the embedder has had more of than the engine, while both had work."""
        while True:
            idle = not computers.busy
            self._obey(computers)
            if idle and engine:
                self._gather(computers, engine)
            began = time.monotonic()
            if engine and engine.busy:
                step = engine.step()
                if step.sampled or step.left:
                    self._on_step(step)
                ahead -= time.monotonic() - began
            else:
                ahead = 0.0
            if embedder.busy and ahead <= 0:
                began = time.monotonic()
                if messages := embedder.step():
                    self._on_messages(messages)
                ahead = time.monotonic() - began

    def _obey(self, computers: Computers, command: _Command | None = None) -> None:
        """Carries out a command, and all that wait; waits for one while there is nothing to do."""
        cancelled: list[Key] = []
        while command or not self._commands.empty() or not (computers.busy or cancelled):
            match command or self._commands.get():
                case Sequence() as sequence:
                    assert computers.engine
                    computers.engine.add(sequence)
                case EmbedJob(header, inputs):
                    computers.embedder.submit(header, inputs)
                case SetThreads(threads):
                    computers.set_threads(threads)
                case key:
                    cancelled.append(key)
            command = None
        if not cancelled:
            return
        if computers.engine and (step := computers.engine.cancel(cancelled)).left:
            self._on_step(step)
        if messages := [word for key in cancelled for word in computers.embedder.cancel(*key)]:
            self._on_messages(messages)

    def _gather(self, computers: Computers, engine: Engine) -> None:
        """Waits for requests that come together with the first one after a pause: what misses a
        step begins a whole step later.
        """
        began = time.monotonic()
        while (patience := began + engine.patience - time.monotonic()) > 0:
            try:
                command = self._commands.get(timeout=patience)
            except Empty:
                return
            self._obey(computers, command)
