"""Telling many listeners how far a change is, at a bounded rate and without losing a last word."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ...protocol.messages.changes import Progress
from .outcomes import Caller

PERIOD_SECONDS = 0.1
"""Least time between two lines of one status about one blob."""
_MOST_LINES = 256
"""Lines that who joins later is told."""

_Key = tuple[str, str]
_Line = Callable[[str], Progress]


class Teller:
    """A `Report` for the listeners of one change; `tell(caller, line)` sends a line to one of them.

    Of each status and blob at most ten lines a second are told, but its last one always, and before
    anything of a later status. Lives on one event loop.
    """

    def __init__(self, tell: Callable[[Caller, _Line], None], opening: str) -> None:
        self._tell = tell
        self._opening = opening
        self._listeners: dict[Caller, None] = {}
        self._lines: dict[_Key, _Line] = {}
        """The last line of each status and blob."""
        self._last: _Line | None = None
        self._waiting: dict[_Key, _Line] = {}
        """Lines that came too soon behind another one."""
        self._told_at: dict[_Key, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __call__(
        self,
        status: str,
        digest: str = "",
        total: int | None = None,
        completed: int | None = None,
    ) -> None:
        """Takes one line, as `Report` says."""
        key = status, digest

        def line(call: str) -> Progress:
            return Progress(call, status, digest, total, completed)

        if not digest:
            self.flush()  # a new part of the work begins
        if key not in self._lines and len(self._lines) >= _MOST_LINES:
            oldest = next(iter(self._lines))
            del self._lines[oldest]
            self._told_at.pop(oldest, None)
        self._lines[key] = line
        now = time.monotonic()
        if key in self._waiting or now < self._told_at.get(key, 0.0) + PERIOD_SECONDS:
            self._waiting[key] = line
            if self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(PERIOD_SECONDS, self.flush)
        else:
            self._send(key, line, now)

    def join(self, caller: Caller) -> None:
        """Tells one more listener from now on, and at once what was so far."""
        self._listeners[caller] = None
        for line in self._lines.values():
            self._tell(caller, line)

    def leave(self, caller: Caller) -> None:
        """Tells a listener nothing more."""
        self._listeners.pop(caller, None)

    def tell_last(self, caller: Caller) -> None:
        """Tells one listener again what was told last."""
        opening = self._opening
        self._tell(caller, self._last or (lambda call: Progress(call, opening)))

    def flush(self) -> None:
        """Tells what waits."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        now = time.monotonic()
        for key, line in waiting.items():
            self._send(key, line, now)

    def close(self) -> None:
        """Tells nothing more to anybody."""
        self._listeners.clear()
        self._waiting.clear()
        if self._timer:
            self._timer.cancel()

    def _send(self, key: _Key, line: _Line, now: float) -> None:
        self._told_at[key] = now
        self._last = line
        for caller in self._listeners:
            self._tell(caller, line)
