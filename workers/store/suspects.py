"""Orders that may be what kills this process.

A frontend repeats its order until it is answered. One that kills the store would be begun again by
each next one, for ever, so what is under way is written down in a small file, and how far it is:

- What was under way at a death is a suspect. Suspects are tried one after the other: the next one
  waits until the one before has got farther than it was at the last death, which clears it, or
  has ended, or has been under way for ten seconds.
- A death that comes from within (`deaths`) and meets one suspect that is tried, or one order in
  all, counts 34 points for it; every other death counts one for all that were there: whoever
  kills a process from outside, or has it killed by the dozen, does not convict what happened to be
  under way. At a hundred points (three deaths from within, or a hundred of any kind, in a row,
  without a step forward between them) the order is refused.
- An order that was answered is forgotten; so is one that was refused, or that nobody waited for any
  more, ten minutes after its last death, and everything when this process is told to end, or the
  host is started again.

The file survives SIGKILL: it is written anew beside the old one and takes its place at an instant.
It is not brought to the disk, since after a power cut nothing in it counts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import orjson

from ...protocol.errors import Code, PronkError
from ...protocol.logs import RateLimitedLog
from .deaths import Death
from .report import Report

_log = logging.getLogger(__name__)

GUILTY = 100
"""Points at which an order is refused."""
FROM_WITHIN = 34
"""Points for a death that came from within."""
ALONE_SECONDS = 10.0
"""How long a suspect is tried. What it does to this process it mostly does at once, and others wait
for their turn."""
SETTLED_SECONDS = 2.0
"""Age of this process at which an order is begun that may have killed two before it. A supervisor
gives a program up that dies again and again within its first second."""
KEPT_SECONDS = 600.0
"""How long it is remembered that an order was deadly."""
STEP = 64 * 1024
"""Bytes that count as a step forward."""
MOST = 256
"""Orders in the file; more than can be under way."""

_WRITTEN_SECONDS = 0.25
"""Least time between two writes about bytes alone."""
_MOST_LINES = 4096
_LARGEST = 1024 * 1024
_LONGEST_NAME = 200


@dataclass(slots=True)
class Entry:
    """What the file has about one order."""

    name: str
    """For people."""
    points: int = 0
    lines: int = 0
    """How far it was when the last process died: things that it had reported…"""
    size: int = 0
    """… and bytes that it had said were there."""
    now_lines: int = 0
    now_size: int = 0
    """How far it is in this process."""
    under_way: int = 0
    """How many carry it out just now."""
    tried: bool = False
    """Whether it is the suspect that is tried."""
    died_at: float = 0.0
    """Monotonic time of the last death that it was under way at."""


def judged(entries: dict[str, Entry], death: Death, now: float) -> dict[str, Entry]:
    """What stands about orders at the start of a process, when the one before it ended so."""
    present = [entry for entry in entries.values() if entry.under_way]
    accused = [entry for entry in present if entry.tried] or present
    for entry in present:
        counts = FROM_WITHIN if death is Death.FROM_WITHIN and len(accused) == 1 else 1
        entry.points = entry.points + counts if entry in accused else max(1, entry.points)
        entry.died_at = now
        entry.lines, entry.size = entry.now_lines, entry.now_size
        entry.now_lines = entry.now_size = entry.under_way = 0
        entry.tried = False
    return {
        key: entry
        for key, entry in entries.items()
        if entry.points and 0 <= now - entry.died_at < KEPT_SECONDS
    }


class Suspects:
    """The orders of one store process. Lives on one event loop.

    Without a path nothing is written down, and nothing is ever refused.
    """

    def __init__(
        self,
        path: Path | None = None,
        boot: str = "",
        death: Death = Death.UNKNOWN,
        settled: float = SETTLED_SECONDS,
    ) -> None:
        self._path = path
        self._boot = boot
        self._settled_at = time.monotonic() + settled
        self._trial = asyncio.Lock()
        self._written_at = float("-inf")
        self._noted = RateLimitedLog(_log)
        now = time.monotonic()
        self._entries = judged(_read(path, boot), death, now) if path else {}
        for entry in self._entries.values():
            _log.warning(
                "the process before this one died with an order under way: %s (%d of %d points)",
                entry.name,
                entry.points,
                GUILTY,
            )
        self.write()

    def case(self, key: str, name: str) -> Case:
        """What is to be watched while an order is carried out: enter it, and wait for its turn.

        `key` is the same for the same order in every process.
        """
        return Case(self, key, name[:_LONGEST_NAME])

    def close(self) -> None:
        """This process ends because it was told to. That is no order's fault: all begin anew."""
        self._entries.clear()
        self.write()
        self._path = None

    def enter(self, key: str, name: str) -> Entry:
        """For `Case`: an order is to be carried out. Raises `PronkError` where it is too deadly."""
        entry = self._entries.get(key)
        late = entry and time.monotonic() - entry.died_at >= KEPT_SECONDS
        if entry is None or (late and not entry.under_way):
            entry = Entry(name)
        if entry.points >= GUILTY:
            _log.error("not begun again, because it kills this process: %s", entry.name)
            raise PronkError(
                Code.INTERNAL,
                "the model library's process died each time that it did this, so it is not tried "
                f"again for {KEPT_SECONDS / 60:.0f} minutes; the server's log says more: tell "
                "whoever runs the server",
            )
        self._entries.pop(key, None)
        self._entries[key] = entry  # what was begun last stands last
        for other in list(self._entries):
            if len(self._entries) <= MOST:
                break
            if not self._entries[other].under_way and other != key:
                del self._entries[other]
        return entry

    async def turn(self, entry: Entry) -> bool:
        """For `Case`: returns when the order may begin, and whether it is tried then."""
        if not entry.points:
            return False
        if entry.points > 1:
            await asyncio.sleep(self._settled_at - time.monotonic())
        await self._trial.acquire()
        return True

    def leave_trial(self) -> None:
        """For `Case`: the next suspect may begin."""
        self._trial.release()

    def forget(self, key: str, entry: Entry) -> None:
        """For `Case`: the order was answered."""
        if self._entries.get(key) is entry and not entry.under_way:
            del self._entries[key]
        self.write()

    def write_soon(self) -> None:
        """For `Case`: only bytes have come, which need not be written each time."""
        if time.monotonic() - self._written_at >= _WRITTEN_SECONDS:
            self.write()

    def write(self) -> None:
        """Puts the file in its place."""
        if self._path is None:
            return
        self._written_at = time.monotonic()
        orders = {
            key: list(astuple(e)) for key, e in self._entries.items() if e.under_way or e.points
        }
        new = self._path.with_name(self._path.name + ".new")
        try:
            new.write_bytes(orjson.dumps({"boot": self._boot, "orders": orders}))
            new.replace(self._path)
        except OSError as error:
            self._noted.warning("what is under way is not written down", str(error.strerror))


class Case:
    """One order while it is carried out: `with` it, `await turn()`, and report to `watching()`."""

    def __init__(self, suspects: Suspects, key: str, name: str) -> None:
        self._suspects = suspects
        self._key = key
        self._name = name
        self._entry = Entry(name)
        self._begun = False
        self._trial: asyncio.TimerHandle | None = None
        self._lines: set[tuple[str, str]] = set()
        self._sizes: dict[str, int] = {}
        self._size = 0

    def __enter__(self) -> Case:
        """Raises `PronkError` where the order has been too deadly."""
        self._entry = self._suspects.enter(self._key, self._name)
        return self

    async def turn(self) -> None:
        """Returns when the order may begin. From then on it is accused if the process dies."""
        if await self._suspects.turn(self._entry):
            self._entry.tried = True
            loop = asyncio.get_running_loop()
            self._trial = loop.call_later(ALONE_SECONDS, self._trial_over)
        self._begun = True
        self._entry.under_way += 1
        self._suspects.write()

    def watching(self, report: Report) -> Report:
        """The same report, of which it is noted how far the order is before it is passed on."""

        def noted(
            status: str,
            digest: str = "",
            total: int | None = None,
            completed: int | None = None,
        ) -> None:
            self._note((status, digest), completed)
            report(status, digest, total, completed)

        return noted

    def _note(self, line: tuple[str, str], completed: int | None) -> None:
        entry, lines = self._entry, len(self._lines)
        if lines < _MOST_LINES:
            self._lines.add(line)
        if completed is not None:
            self._size += completed - self._sizes.get(line[1], 0)
            self._sizes[line[1]] = completed
        entry.now_lines, entry.now_size = len(self._lines), self._size
        forward = len(self._lines) > entry.lines or self._size >= entry.size + STEP
        cleared = forward and entry.points > 0
        if cleared:
            entry.points = 0
            self._leave_trial()
        if cleared or len(self._lines) > lines:
            self._suspects.write()
        else:
            self._suspects.write_soon()

    def _trial_over(self) -> None:
        self._leave_trial()
        self._suspects.write()

    def _leave_trial(self) -> None:
        if self._trial:
            self._trial.cancel()
            self._trial = None
            self._entry.tried = False
            self._suspects.leave_trial()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind and not issubclass(kind, Exception | asyncio.CancelledError):
            return  # it ends this process
        self._leave_trial()
        if self._begun:
            self._entry.under_way -= 1
        if self._entry.points and kind is asyncio.CancelledError:
            self._suspects.write()  # it has not shown yet that it does no harm
        else:
            self._suspects.forget(self._key, self._entry)


def _read(path: Path, boot: str) -> dict[str, Entry]:
    try:
        with path.open("rb") as file:
            value: Any = orjson.loads(file.read(_LARGEST))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        value = None
    match value:
        case {"boot": str(booted), "orders": dict(orders)}:
            pass
        case _:
            _log.warning("what was under way before cannot be read; nothing is suspected")
            return {}
    if not boot or booted != boot:
        return {}
    entries = cast(dict[str, Any], orders).items()
    return {key: entry for key, fields in entries if (entry := _entry(fields))}


def _entry(fields: Any) -> Entry | None:
    match fields:
        case [
            str(name),
            int(points),
            int(lines),
            int(size),
            int(now_lines),
            int(now_size),
            int(under_way),
            bool(tried),
            float(died_at),
        ]:
            here = now_lines, now_size, under_way
            return Entry(name, points, lines, size, *here, tried, died_at)
        case _:
            return None
