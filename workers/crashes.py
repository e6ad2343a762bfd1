"""How a process that keeps dying slows itself down.

Its supervisor restarts it at once, always: leaving is how a worker gives memory back, and must stay
cheap. So the process itself remembers, in a small file, that it did not leave on its own accord,
and waits before it says hello once several short lives ended that way. A clean exit removes the
file; a kill after a long life starts the count again.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path

_log = logging.getLogger(__name__)

SHORT_LIFE = 30.0
"""Seconds: who dies younger than this may be in a crash loop."""

_PATIENT_WITH = 2
_FIRST_DELAY = 0.5
_LONGEST_DELAY = 10.0


@dataclass(frozen=True, slots=True)
class CrashHistory:
    """What the file holds: short lives in a row that ended in a crash, and when this one began."""

    crashes: int = 0
    born: float = 0.0
    """Unix time."""

    def reborn(self, now: float) -> CrashHistory:
        """The history at the start of the next life, when this one did not end cleanly."""
        # Further in the future than a wait can put a birth, the clock was set back.
        young = -_LONGEST_DELAY <= now - self.born < SHORT_LIFE
        return CrashHistory(self.crashes + 1 if young else 1, now)

    @property
    def delay(self) -> float:
        """Seconds to wait before taking work: none at first, then 0.5, 1, 2, … at most 10."""
        excess = self.crashes - _PATIENT_WITH
        return min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** min(excess - 1, 16)) if excess > 0 else 0.0


class CrashRecord:
    """The history of one process, by its name, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self) -> float:
        """Notes that a life begins; returns the seconds that it should wait first.

        The record counts the wait as part of the life's beginning, not of the life: it is written
        as if the life began after it.
        """
        previous = self._read()
        now = time.time()
        history = previous.reborn(now) if previous else CrashHistory(0, now)
        self._write(CrashHistory(history.crashes, now + history.delay))
        return history.delay

    def clear(self) -> None:
        """Notes that this life ends on its own accord."""
        self._path.unlink(missing_ok=True)

    def _read(self) -> CrashHistory | None:
        try:
            crashes, born = json.loads(self._path.read_bytes())
            return CrashHistory(min(max(int(crashes), 0), 1000), float(born))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, OverflowError) as error:
            _log.warning("the crash record is unreadable and starts anew: %s", error)
            return None

    def _write(self, history: CrashHistory) -> None:
        temporary = self._path.with_suffix(".part")
        try:
            temporary.write_text(json.dumps([history.crashes, history.born]))
            temporary.replace(self._path)
        except OSError as error:
            _log.warning("the crash record cannot be written: %s", error)
