"""Work that may take too long, in a thread that is given up then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from ...protocol.errors import Code, PronkError

STACK = 256 * 2**20
"""Bytes of address space: llguidance recurses along chains of references and rules."""

_MOST = 4
"""Such threads at a time, those given up among them."""

_PATIENCE = 20.0
"""Seconds that work waits for its turn among them."""

T = TypeVar("T")


class TookTooLong(Exception):
    """The work was given up."""


class Turns:
    """Whose turn it is. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns = threading.BoundedSemaphore(_MOST)

    def run(self, work: Callable[[], T], seconds: float) -> T:
        """What `work` returns or raises; it may take so much processor time.

        Raises `TookTooLong`, and `PronkError` (UNAVAILABLE) where no turn comes.
        """
        if not self._turns.acquire(timeout=_PATIENCE):
            raise PronkError(
                Code.UNAVAILABLE,
                "too many formats are being compiled; try again",
                retry_after=2.0,
            )
        try:
            thread = self._start(work)
        except BaseException:
            self._turns.release()
            raise
        return thread.result(seconds)

    def _start(self, work: Callable[[], T]) -> _Work[T]:
        thread = _Work(work, self._turns.release)
        with self._lock:
            usual = threading.stack_size(STACK)
            try:
                thread.start()
            finally:
                threading.stack_size(usual)
        return thread


class _Work(threading.Thread, Generic[T]):
    """One piece of work. llguidance lets go of Python's lock, so nothing waits for it but us."""

    def __init__(self, work: Callable[[], T], on_end: Callable[[], None]) -> None:
        super().__init__(name="grammar", daemon=True)
        self._work = work
        self._on_end = on_end
        self._clock: Callable[[], float] | None = None
        self._results: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        self._clock = _own_clock()
        try:
            self._results.append(self._work())
        except BaseException as error:
            self._error = error
        finally:
            self._on_end()

    def result(self, seconds: float) -> T:
        """Waits for the result. Raises `TookTooLong`, or what the work raised."""
        while self.is_alive() and self._used() < seconds:
            self.join(0.02)
        if self.is_alive():
            raise TookTooLong
        if self._error:
            raise self._error
        return self._results[0]

    def _used(self) -> float:
        """Seconds of processor time so far: waiting on a busy machine does not count."""
        if self._clock is not None:
            with suppress(OSError):  # the thread has just ended
                return self._clock()
        return 0.0


def _own_clock() -> Callable[[], float]:
    """This thread's processor time, for any thread to read; on macOS the time since now."""
    if hasattr(time, "pthread_getcpuclockid"):
        clock = time.pthread_getcpuclockid(threading.get_ident())
        return lambda: time.clock_gettime(clock)
    began = time.monotonic()
    return lambda: time.monotonic() - began
