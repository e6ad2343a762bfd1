"""Whoever kills, stops and drains processes at random, without doing what nobody could survive.

supervisord gives up a program that dies four times within a second of its start; workers it always
starts again. So a process other than a worker is left alone while it is young. Where there is only
one of a role, it is left alone until it has done its work again: who waits for it does so for ten
seconds, and on a busy machine two starts in a row take as long.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter

import psutil

from chaos.clients import Load, fetch
from support.server import Server

YOUNG = 3.0
"""Seconds of age below which only workers are killed."""

ROLES = {
    "worker": "worker",
    "frontend": "pronk.frontend",
    "scheduler": "pronk.scheduler",
    "store": "store",
}
"""A word of each role's command line."""

WORK = {"scheduler": "/api/ps", "store": "/api/tags"}
"""What is answered when the one process of a role does its work."""

DEEDS = (
    ("kill worker", 45),
    ("kill frontend", 12),
    ("kill scheduler", 12),
    ("kill store", 8),
    ("stop", 15),
    ("drain worker", 8),
)
"""What is done, and how often in proportion."""


class Killer:
    """Does one deed after the other until it is cancelled."""

    def __init__(
        self, server: Server, load: Load, dice: random.Random, *, verbose: bool = False
    ) -> None:
        self._verbose = verbose
        self._began = time.monotonic()
        self._server = server
        self._load = load
        self._dice = dice
        self._stopped: set[psutil.Process] = set()
        self._continuing: set[asyncio.Task[None]] = set()
        self.deeds: Counter[str] = Counter()

    async def run(self) -> None:
        """Kills until cancelled; then lets those go on that are stopped."""
        names, weights = zip(*DEEDS, strict=True)
        try:
            while True:
                await asyncio.sleep(self._dice.uniform(0.5, 3.0))
                (deed,) = self._dice.choices(names, weights)
                verb, _, role = deed.partition(" ")
                role = role or self._dice.choice(list(ROLES))
                if role in WORK and await fetch(self._server.port, WORK[role]) != 200:
                    continue
                if victim := self._victim(role):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        self._do(verb, role, victim)
                        self.deeds[f"{verb} {role}"] += 1
                        if self._verbose:
                            second = time.monotonic() - self._began
                            print(f"{second:6.1f} s  {verb} {role} {victim.pid}", flush=True)
        finally:
            for task in self._continuing:
                task.cancel()
            for process in self._stopped:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()

    def _victim(self, role: str) -> psutil.Process | None:
        there = self._server.processes(ROLES[role])
        if role != "worker":
            there = [process for process in there if time.time() - process.create_time() > YOUNG]
        return self._dice.choice(there) if there else None

    def _do(self, verb: str, role: str, victim: psutil.Process) -> None:
        match verb:
            case "kill" if role == "frontend":
                # It stands still while its connections are read: they are exactly those that die.
                victim.suspend()
                while victim.status() != psutil.STATUS_STOPPED:
                    time.sleep(0.001)
                for connection in victim.net_connections("tcp"):
                    if connection.raddr:
                        self._load.doomed.append((time.monotonic(), connection.raddr.port))
                victim.kill()
            case "kill":
                if role == "worker":
                    self._load.killed.append(time.monotonic())
                victim.kill()
            case "stop":
                victim.suspend()
                self._stopped.add(victim)
                task = asyncio.create_task(self._resume(victim, self._dice.uniform(0.3, 4.0)))
                self._continuing.add(task)
                task.add_done_callback(self._continuing.discard)
            case _:
                victim.send_signal(signal.SIGUSR1)

    async def _resume(self, process: psutil.Process, after: float) -> None:
        await asyncio.sleep(after)
        self._stopped.discard(process)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
