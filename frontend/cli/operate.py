"""What an operator asks a running server: which processes there are, and which are to leave."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path

from ...protocol.errors import Code, PronkError
from ...protocol.messages.control import (
    Drain,
    DrainBegun,
    DrainKind,
    ListProcesses,
    ProcessEntry,
    ProcessList,
)
from ...protocol.messages.fleet import Role
from ...protocol.questions import Questions
from ...protocol.settings import Settings
from ...protocol.state import StateDirectory

_LOOK_SECONDS = 0.5
_KNOCK_SECONDS = 0.1

RESTART_SECONDS = 3.0
"""How long a scheduler that was killed may take to be back."""

SUCCESSOR_SECONDS = 30.0
"""How long the successor of a drained frontend may take to come before the next one is drained."""

_COLUMNS = ("NAME", "PID", "STATE", "MODEL", "REQUESTS", "DEVICES", "INCARNATION")

Say = Callable[[str], None]


class Operator:
    """A line to the scheduler of the server whose settings these are."""

    def __init__(self, settings: Settings) -> None:
        """Raises `PronkError` when no server runs there."""
        endpoint = StateDirectory(settings.state).control
        if not _somebody_listens(endpoint.removeprefix("ipc://")):
            raise PronkError(
                Code.UNAVAILABLE,
                f"no server runs on PRONK_STATE={settings.state}; start one with `pronk serve`, "
                "or set PRONK_STATE as the server has it",
            )
        self._questions = Questions(
            endpoint, f"the scheduler of the server on PRONK_STATE={settings.state}"
        )

    def close(self) -> None:
        """Ends the connection."""
        self._questions.close()

    async def processes(self) -> ProcessList:
        """Every process that the scheduler knows, once all had the time to announce themselves."""
        while True:
            answer = await self._questions.ask(ListProcesses)
            if not isinstance(answer, ProcessList):
                raise _odd()
            if answer.complete:
                return answer
            await asyncio.sleep(_LOOK_SECONDS)

    async def drain(
        self, kind: DrainKind, name: str, limit: float | None, *, undo: bool = False
    ) -> list[ProcessEntry]:
        """Has processes drained; returns them. Raises `PronkError` for a bad name."""
        answer = await self._questions.ask(lambda call: Drain(call, kind, name, limit, undo))
        if not isinstance(answer, DrainBegun):
            raise _odd()
        return answer.processes


def _somebody_listens(path: str) -> bool:
    """Whether a scheduler is there, perhaps after a moment: it may just be restarted."""
    # Tries count, and not the clock: this process may have stood still together with the scheduler.
    for _ in range(round(RESTART_SECONDS / _KNOCK_SECONDS)):
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(path)
            return True
        if not Path(path).parent.exists():
            break
        time.sleep(_KNOCK_SECONDS)
    return False


def _odd() -> PronkError:
    return PronkError(Code.INTERNAL, "the scheduler gave an answer of another kind")


def table(listed: ProcessList) -> str:
    """The processes, a line each, and what else an operator wants to know."""
    rows = [_COLUMNS]
    rows += [
        (
            entry.name,
            str(entry.pid),
            entry.state,
            entry.model or "-",
            str(entry.requests),
            ",".join(entry.devices) or "-",
            entry.incarnation,
        )
        for entry in listed.processes
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines.append(f"requests that wait for a worker: {listed.waiting}")
    lines += [
        f"device {name} is drained: nothing is placed there" for name in listed.drained_devices
    ]
    return "\n".join(lines)


async def show(settings: Settings, say: Say) -> None:
    """Says what runs. Raises `PronkError` when nobody answers."""
    operator = Operator(settings)
    try:
        say(table(await operator.processes()))
    finally:
        operator.close()


async def drain(
    settings: Settings, kind: DrainKind, name: str, limit: float | None, undo: bool, say: Say
) -> None:
    """Has processes drained within `limit` seconds, and says how far they are until the last one
    has ended.

    Without a name, all frontends, one after the other. Raises `PronkError` when nobody answers, or
    there is nothing of that name.
    """
    operator = Operator(settings)
    try:
        if undo:
            await operator.drain(kind, name, limit, undo=True)
            say(f"device {name} is used again")
        elif name:
            leaving = await operator.drain(kind, name, limit)
            if kind is DrainKind.DEVICE:
                say(f"nothing is placed on device {name} until `pronk drain device {name} --undo`")
            await _follow(operator, leaving, say)
        else:
            await _drain_frontends(operator, limit, say)
    finally:
        operator.close()


async def _drain_frontends(operator: Operator, limit: float | None, say: Say) -> None:
    """Drains every frontend, each when its predecessor has a successor: one always accepts."""
    frontends = _serving((await operator.processes()).processes)
    for entry in frontends:
        leaving = await operator.drain(DrainKind.FRONTEND, entry.incarnation, limit)
        await _follow(operator, leaving, say)
        try:
            async with asyncio.timeout(SUCCESSOR_SECONDS):
                while True:
                    there = _serving((await operator.processes()).processes)
                    if len(there) >= len(frontends):
                        break
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise PronkError(
                Code.UNAVAILABLE,
                f"{entry.name} has ended and nothing took its place within "
                f"{SUCCESSOR_SECONDS:g} s; the other frontends were left as they are",
            ) from None


def _serving(processes: list[ProcessEntry]) -> list[ProcessEntry]:
    return [
        entry for entry in processes if entry.role is Role.FRONTEND and entry.state == "serving"
    ]


async def _follow(operator: Operator, leaving: list[ProcessEntry], say: Say) -> None:
    """Says what changes about the processes that leave, until the last one is gone."""
    left = {entry.incarnation: f"{entry.name} (pid {entry.pid})" for entry in leaving}
    told: dict[str, str] = {}
    while left:
        there = {entry.incarnation: entry for entry in (await operator.processes()).processes}
        for incarnation, name in list(left.items()):
            if entry := there.get(incarnation):
                line = f"{name} is {entry.state}, {_requests(entry.requests)} left"
            else:
                del left[incarnation]
                line = f"{name} has ended"
            if told.get(incarnation) != line:
                told[incarnation] = line
                say(line)
        if left:
            await asyncio.sleep(_LOOK_SECONDS)


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"
