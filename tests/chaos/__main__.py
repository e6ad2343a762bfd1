"""Kills processes of a real server at random, under load, and looks at every byte of every answer.

    make test-chaos ARGS="--seconds 300 --seed 7"

Exit status 0 means: every stream had its end, except those whose own frontend was killed; no text
was wrong, no token doubled or lost; nothing was left waiting; the memory of every process was flat;
and no process stayed behind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import sys
import time

import psutil

from chaos.clients import Ending, Load, ask, fetch, learn
from chaos.killer import Killer
from chaos.memory import Watch
from chaos.questions import Question, add_models, recited, unanswered
from pronk.protocol.messages.control import ListProcesses, ProcessList
from pronk.protocol.questions import Questions
from pronk.protocol.state import StateDirectory
from support.server import Server, servers

WORKERS, FRONTENDS = 5, 3
CALM = 90.0
"""Seconds within which all is well again after the last deed: a worker that died often waits for up
to ten before it takes work."""

FAULTS_SHOWN = 20


def main() -> int:
    """Runs the suite once."""
    parser = argparse.ArgumentParser(
        prog="make test-chaos", description="Kills processes at random, under load."
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--seed", type=int, help="of everything random (a new one each time)")
    parser.add_argument("--verbose", action="store_true", help="tell each deed as it is done")
    parser.add_argument("--clients", type=int, default=8, help="requests at a time (8)")
    arguments = parser.parse_args()
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"chaos for {arguments.seconds:g} s, seed {seed}", flush=True)
    with servers() as make:
        server = make(
            start=False,
            PRONK_WORKERS=str(WORKERS),
            PRONK_FRONTENDS=str(FRONTENDS),
            PRONK_CACHE_MEMORY="32MiB",
            PRONK_DRAIN_TIMEOUT="1",
            PRONK_DEVICES=json.dumps([{"name": f"sim{n}", "memory": "8GiB"} for n in range(2)]),
        )
        add_models(server)
        server.start()
        faults = asyncio.run(_chaos(server, arguments, seed))
        status = server.stop()
        server.process = None
        if status:
            faults.append(f"the server ended with status {status}")
        if left := _left_behind(server):
            faults.append(f"left behind: {left}")
        if faults:
            print(f"\nFAILED, seed {seed}:")
            for fault in faults[:FAULTS_SHOWN]:
                print(f"  {fault}")
            if len(faults) > FAULTS_SHOWN:
                print(f"  … and {len(faults) - FAULTS_SHOWN} more")
        else:
            print("\nall is well")
    return 1 if faults else 0


async def _chaos(server: Server, arguments: argparse.Namespace, seed: int) -> list[str]:
    """Everything between start and stop; returns what was wrong."""
    dice = random.Random(seed)
    questions = await learn(server.port, unanswered(dice))
    faults = [
        f"undisturbed, {question.body['prompt']} is not followed by what it has to be"
        for question in questions
        if question.model == "reciter" and question.text != recited(question)
    ]
    load = Load(server.port, questions, random.Random(seed + 1))
    killer = Killer(server, load, random.Random(seed + 2), verbose=arguments.verbose)
    watch = Watch(server)
    loading = asyncio.create_task(load.run(arguments.clients))
    watching = asyncio.create_task(watch.run())
    killing = asyncio.create_task(killer.run())
    await asyncio.wait({killing, loading, watching}, timeout=arguments.seconds)
    load.stop()
    await _end(killing)
    await loading
    faults += load.faults
    faults += await _calm(server, questions)
    await _end(watching)
    memory, grown = watch.verdict()
    faults += grown
    _report(killer, load, server, memory)
    return faults


async def _end(task: asyncio.Task[None]) -> None:
    """Ends a task that goes on for ever; raises what it ended with if it did not."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _calm(server: Server, questions: list[Question]) -> list[str]:
    """What is not as it has to be when nothing is killed any more."""
    faults: list[str] = []
    began = time.monotonic()
    while await fetch(server.port, "/api/ps") != 200:
        if time.monotonic() - began > CALM:
            return ["/api/ps does not answer"]
        await asyncio.sleep(0.1)
    first = {question.model: question for question in questions}
    for model, question in first.items():
        try:
            async with asyncio.timeout(CALM):
                request = await ask(server.port, question)
        except TimeoutError:
            faults.append(f"{model} does not answer within {CALM:g} s after all is over")
            continue
        ending, detail = request.judge()
        if ending is not Ending.RIGHT:
            faults.append(f"after all is over, {model}: {detail}")
    print(f"after the last deed all models had answered in {time.monotonic() - began:.1f} s")
    busy = await _busy(server)
    while busy:
        if time.monotonic() - began > 2 * CALM:
            return [*faults, f"left over: {busy}"]
        await asyncio.sleep(0.2)
        busy = await _busy(server)
    return faults


async def _busy(server: Server) -> str:
    """Who still has requests, or is missing, as the scheduler sees it; empty for nobody."""
    scheduler = Questions(StateDirectory(server.state).control, "the scheduler")
    try:
        listed = await scheduler.ask(ListProcesses)
    finally:
        scheduler.close()
    assert isinstance(listed, ProcessList)
    if listed.waiting:
        return f"{listed.waiting} requests wait"
    if len(listed.processes) != WORKERS + FRONTENDS:
        return f"{len(listed.processes)} of {WORKERS + FRONTENDS} processes are there"
    return ", ".join(
        f"{entry.name} has {entry.requests} requests"
        for entry in listed.processes
        if entry.requests
    )


def _report(killer: Killer, load: Load, server: Server, memory: list[str]) -> None:
    print("\ndeeds:   " + ", ".join(f"{deed} {n}" for deed, n in sorted(killer.deeds.items())))
    print(f"answers: {sum(load.endings.values())}")
    for ending in Ending:
        if count := load.endings[ending]:
            print(f"  {count:6} {ending.value}")
    logs = (server.state / "logs").glob("frontend-*.log*")
    lost = sum(len(re.findall(r"attempt \d+ follows", log.read_text())) for log in logs)
    print(f"attempts that followed a lost one: {lost}")
    print(f"longest pause in an answer: {load.longest_pause:.1f} s")
    waited = f"{load.longest_wait:.1f} s ({load.longest_waited})"
    print(f"longest wait for the beginning of a stream: {waited}")
    print("memory:")
    for line in memory:
        print(f"  {line}")


def _left_behind(server: Server) -> list[int]:
    """Processes that still have this server's directory in their environment."""
    left: list[int] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("PRONK_STATE") == str(server.state):
                left.append(process.pid)
    return left


if __name__ == "__main__":
    sys.exit(main())
