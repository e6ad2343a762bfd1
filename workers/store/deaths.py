"""How the process before this one ended: of itself, or by somebody's hand.

A fault (SIGSEGV, SIGBUS, SIGABRT, …) and an exception that nobody caught leave their traceback in a
file; where the kernel ran out of memory and killed something, its counter of that has grown. All
else, such as SIGKILL from outside, cannot be told from one another.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import traceback
from enum import Enum
from pathlib import Path

_log = logging.getLogger(__name__)

_LONGEST = 16 * 1024
"""Bytes of last words that are read."""


class Death(Enum):
    """What ended a process."""

    FROM_WITHIN = "from within"
    """What it did itself: a fault, an exception, or more memory than there is."""
    UNKNOWN = "unknown"
    """Anything else, an orderly end among it."""


class LastWords:
    """The file for the last words of one process after the other. The directory is private."""

    def __init__(self, path: Path, counter: Path | None = None) -> None:
        self._path = path
        self._counter = counter or _memory_events()
        self._file = -1

    def begin(self) -> Death:
        """How the process before this one ended, whose last words go to the log. From now on the
        file is for this one's.
        """
        killed = _out_of_memory(self._counter)
        before, words = _split(self._read())
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o600)
            os.write(self._file, b"%d\n" % killed)
            faulthandler.enable(self._file)
        except OSError as error:
            _log.warning("last words could not be kept: %s", error.strerror)
        if words:
            _log.error("the process before this one died:\n%s", words)
            return Death.FROM_WITHIN
        if before is not None and killed > before:
            _log.error("the host ran out of memory while the process before this one ran")
            return Death.FROM_WITHIN
        return Death.UNKNOWN

    def note(self, error: BaseException) -> None:
        """This process ends by an exception."""
        if self._file >= 0:
            os.write(self._file, "".join(traceback.format_exception(error)).encode())

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                return file.read(_LONGEST)
        except OSError:
            return b""


def _split(content: bytes) -> tuple[int | None, str]:
    """The counter at the start of a life, and its last words."""
    first, _, words = content.partition(b"\n")
    before = int(first) if first.isdigit() and len(first) < 20 else None
    return before, words.decode(errors="replace").strip() if before is not None else ""


def _memory_events() -> Path:
    """Where the kernel counts whom it killed for their memory: among our own, else on this host."""
    try:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                events = Path(f"/sys/fs/cgroup{line[3:]}") / "memory.events"
                if events.exists():
                    return events
    except OSError:
        pass
    return Path("/proc/vmstat")


def _out_of_memory(counter: Path) -> int:
    try:
        for line in counter.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill" and number.isdigit():
                return int(number)
    except OSError:
        pass
    return 0
