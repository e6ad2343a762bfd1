"""One log format for all processes: time, level, role and pid, message."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter


def configure_logging(role: str, level: str) -> None:
    """Sends this process's log to standard error, which its supervisor keeps."""
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format=f"%(asctime)s %(levelname)s {role}[{os.getpid()}] %(name)s: %(message)s",
        force=True,
    )


_totals: Counter[tuple[str, str]] = Counter()


def counted() -> dict[tuple[str, str], int]:
    """How often each thing happened in this process that is logged with a limit, by the names of
    its logger and its kind.
    """
    return dict(_totals)


class RateLimitedLog:
    """Logs what hostile or broken peers cause: counted always, written at most every `period` s."""

    def __init__(self, logger: logging.Logger, period: float = 10.0) -> None:
        self._logger = logger
        self._period = period
        self._next: dict[str, float] = {}
        self.counts: Counter[str] = Counter()

    def warning(self, kind: str, detail: str) -> None:
        """Counts one event of `kind`; writes a line unless one was written just now."""
        if self._due(kind):
            self._logger.warning("%s (%d so far): %s", kind, self.counts[kind], detail)

    def exception(self, kind: str) -> None:
        """Counts the exception that is being handled, and writes it, in the same way."""
        if self._due(kind):
            self._logger.exception("%s (%d so far)", kind, self.counts[kind])

    def _due(self, kind: str) -> bool:
        self.counts[kind] += 1
        _totals[self._logger.name, kind] += 1
        now = time.monotonic()
        due = now >= self._next.get(kind, 0.0)
        if due:
            self._next[kind] = now + self._period
        return due
