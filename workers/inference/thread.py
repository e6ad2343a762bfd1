"""The thread in which the engine runs, beside the event loop.

llama.cpp computes without Python's lock: while a step computes, the event loop turns the tokens of
the step before into text and sends them. Commands are read between steps and never delay one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ...protocol.errors import Code, PronkError
from .sequence import Key, Sequence

if TYPE_CHECKING:
    from .engine import Engine, Step

_log = logging.getLogger(__name__)


class EngineThread(threading.Thread):
    """Makes an engine, then runs it for ever.

    All callbacks are called in this thread: `on_loaded(engine)` or `on_failed(error)` once,
    `on_step(step)` whenever a step brought something.
    """

    def __init__(
        self,
        make: Callable[[], Engine],
        on_loaded: Callable[[Engine], None],
        on_failed: Callable[[PronkError], None],
        on_step: Callable[[Step], None],
    ) -> None:
        super().__init__(name="engine", daemon=True)
        self._make = make
        self._on_loaded = on_loaded
        self._on_failed = on_failed
        self._on_step = on_step
        self._commands: SimpleQueue[Sequence | Key] = SimpleQueue()
        self._engine: Engine | None = None

    @property
    def steps(self) -> int:
        """Changes as long as the engine gets anywhere. May be read by any thread."""
        return self._engine.steps if self._engine else 0

    def add(self, sequence: Sequence) -> None:
        """Hands over a request; a step that has it among `left` is the last word about it."""
        self._commands.put(sequence)

    def cancel(self, key: Key) -> None:
        """Ends a request before the next step, if it is still there."""
        self._commands.put(key)

    def run(self) -> None:
        """The thread's life: ends only where loading fails."""
        try:
            engine = self._make()
        except PronkError as error:
            self._on_failed(error)
            return
        except Exception:
            _log.exception("loading failed")
            self._on_failed(PronkError(Code.LOAD_FAILED, "an error in the server; see its log"))
            return
        self._engine = engine
        self._on_loaded(engine)
        while True:
            self._obey(engine)
            step = engine.step()
            if step.sampled or step.left:
                self._on_step(step)

    def _obey(self, engine: Engine) -> None:
        """Carries out all commands; waits for one while there is nothing else to do."""
        cancelled: list[Any] = []
        while not self._commands.empty() or not (engine.busy or cancelled):
            command = self._commands.get()
            if isinstance(command, Sequence):
                engine.add(command)
            else:
                cancelled.append(command)
        if cancelled:
            step = engine.cancel(cancelled)
            if step.left:
                self._on_step(step)
