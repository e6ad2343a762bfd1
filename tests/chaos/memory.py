"""Whether the memory of every process is flat, over its own life and from one life to the next."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from chaos.killer import ROLES
from support.server import Server

SETTLED = 5.0
"""Seconds of age below which a process still takes what it needs anyway."""

LONG = 40.0
"""Seconds of a life that is long enough to be compared with itself."""

MIB = 2**20
SLACK = 12 * MIB
GROWTH = 1.15

ROOM = {"worker": 96 * MIB}
"""What a role may take more in the course of a life: a replica touches its KV cache bit by bit, and
fills its cache of prefixes (`PRONK_CACHE_MEMORY`)."""


@dataclass
class Life:
    """One process, looked at each second."""

    role: str
    begin: float
    """Unix time from which it counts: of a worker, since it has a model."""
    samples: list[tuple[float, int]] = field(default_factory=list)
    """Seconds since then, and bytes of resident memory."""

    def between(self, begin: float, end: float) -> float | None:
        """The median in a part of its settled life, from 0 to 1; None where nobody looked."""
        settled = [size for age, size in self.samples if age >= SETTLED]
        part = settled[int(begin * len(settled)) : int(end * len(settled))]
        return statistics.median(part) if part else None


class Watch:
    """Looks at all processes of a server each second until it is cancelled."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lives: dict[tuple[int, float], Life] = {}

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            self._look()
            await asyncio.sleep(1.0)

    def _look(self) -> None:
        assert self._server.process
        there = {role: self._server.processes(word) for role, word in ROLES.items()}
        there["supervisord"] = [psutil.Process(self._server.process.pid)]
        for role, processes in there.items():
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if role == "worker" and not _has_model(process):
                        continue
                    key = process.pid, process.create_time()
                    life = self._lives.setdefault(key, Life(role, time.time()))
                    life.samples.append((time.time() - life.begin, process.memory_info().rss))

    def verdict(self) -> tuple[list[str], list[str]]:
        """A line for each role, and a line for everything that grows."""
        lines: list[str] = []
        faults: list[str] = []
        by_role: defaultdict[str, list[Life]] = defaultdict(list)
        for life in sorted(self._lives.values(), key=lambda life: life.begin):
            by_role[life.role].append(life)
        for role, lives in by_role.items():
            room = ROOM.get(role, 0) + SLACK
            typical = [size for life in lives if (size := life.between(0, 1)) is not None]
            for life in lives:
                early, late = life.between(0.25, 0.5), life.between(0.75, 1)
                old = life.samples[-1][0] - life.samples[0][0] >= LONG
                if old and early and late and late > GROWTH * early + room:
                    faults.append(
                        f"a {role} grew from {_mib(early)} to {_mib(late)} MiB in its life"
                    )
            third = max(len(typical) // 3, 1)
            if len(typical) >= 2 and role != "worker":  # whose size is that of its model
                first, last = (
                    statistics.median(typical[:third]),
                    statistics.median(typical[-third:]),
                )
                if last > GROWTH * first + room:
                    faults.append(f"{role}s grew from {_mib(first)} to {_mib(last)} MiB")
            if typical:
                sizes = f"{_mib(min(typical))} to {_mib(max(typical))} MiB"
                lines.append(f"{role:12} {len(lives):4} lives, settled at {sizes}")
        return lines, faults


def _has_model(worker: psutil.Process) -> bool:
    with contextlib.suppress(OSError):
        return "libllama" in Path(f"/proc/{worker.pid}/maps").read_text()
    return False


def _mib(size: float) -> str:
    return f"{size / MIB:.0f}"
