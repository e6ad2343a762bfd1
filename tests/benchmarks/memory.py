"""Resident memory of all processes, before and after many short requests."""

from __future__ import annotations

import asyncio
import time

import psutil

from support.server import Server

from .load import connect, run
from .stand import GREEDY, Plan, line, say, serving

SLOTS = 8
CLIENTS = 16
WARM = 1000
QUESTIONS = ("What is the capital of France?", "Count to {}.", "Hello, I am number {}!", "{}?")


def memory(plan: Plan) -> None:
    """Answers of a few tokens from the demo model, after as many as it takes to be warm."""
    with serving("demo", SLOTS, 1024, plan.threads) as server:
        began = time.monotonic()
        run(_ask(server.port, 0, WARM))
        each = (time.monotonic() - began) / WARM
        say(f"memory over {plan.requests} requests: about {each * plan.requests:.0f} s")
        before = _resident(server)
        run(_ask(server.port, WARM, WARM + plan.requests))
        after = _resident(server)
    for role in before:
        say(f"{role}: {before[role] / 2**20:.1f} MiB, then {after[role] / 2**20:.1f} MiB")
    grown = sum(after.values()) - sum(before.values())
    line(
        "demo",
        f"resident memory after {plan.requests:,} requests",
        f"{sum(after.values()) / 2**20:.1f} MiB",
        f"before {sum(before.values()) / 2**20:.1f}",
        f"{grown / 2**20:+.1f} MiB",
        "no growth",
    )


async def _ask(port: int, first: int, end: int) -> None:
    """Asks all of it, over some connections that stay open, one request after the other on each."""
    numbers = iter(range(first, end))

    async def client() -> None:
        exchange = await connect(port)
        for number in numbers:
            question = QUESTIONS[number % len(QUESTIONS)].format(number)
            messages = [{"role": "user", "content": question}]
            options = {**GREEDY, "num_predict": 4}
            exchange.send("/api/chat", {"model": "demo", "messages": messages, "options": options})
            await exchange.done
        exchange.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


def _resident(server: Server) -> dict[str, int]:
    """Bytes by process; what processes share is counted in each of them."""
    assert server.process
    found: dict[str, int] = {}
    for child in psutil.Process(server.process.pid).children(recursive=True):
        module = next((word for word in child.cmdline() if word.startswith("pronk.")), "other")
        found[f"{module} {child.pid}"] = child.memory_info().rss
    return found
