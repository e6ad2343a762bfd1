"""The relay's table: what everything around an engine costs, with `echo` in the engine's place.

usage: make bench-relay ARGS="--rows relay --clients 64 256 --rounds 5"

Both sides take turns, and each round's ratio is taken by itself. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psutil

from support.server import Server, servers

from .bare import Bare
from .flood import flood
from .load import run
from .stand import line, print_table, ratio_with_spread, say

ECHOING = {"PRONK_ECHO_MODEL": "on", "PRONK_DEMO_MODEL": "off", "PRONK_KEEP_ALIVE": "-1"}
PACED = 25_600
"""Lines per second of the row `paced`, for all clients together."""
PACED_SECONDS = 2
REPLICA_PACE = 100
REPLICA_SLOTS = 4
REPLICA_CLIENTS = 32
REPLICA_TOKENS = 50
WORD = "word"
"""A prompt of one token, which is what each line holds then."""


@dataclass(frozen=True)
class Plan:
    """What was asked for on the command line."""

    clients: tuple[int, ...]
    rounds: int
    tokens: int


def relay(plan: Plan) -> None:
    """Lines per second to all clients of one frontend, beside a handler that only writes them."""
    with servers() as make, closing(Bare()) as bare:
        server = make(PRONK_WORKERS="1", **ECHOING)
        for clients in plan.clients:
            tokens = plan.tokens
            _relayed(server, clients, 10)  # loads
            _relayed(server, clients, tokens)
            run(flood(bare.port, clients, _body(tokens)))
            ours, theirs = list[float](), list[float]()
            before = _processor_seconds(server, bare)
            for _ in range(plan.rounds):
                ours.append(clients * tokens / _relayed(server, clients, tokens))
                took, _ = run(flood(bare.port, clients, _body(tokens)))
                theirs.append(clients * tokens / took)
            spent = _processor_seconds(server, bare) - before
            each = {role: took / plan.rounds / clients / tokens for role, took in spent.items()}
            shares = ", ".join(f"{role} {took * 1e6:.1f} µs" for role, took in each.items())
            say(f"processor time a line at {clients} clients: {shares}")
            line(
                "echo",
                f"lines/s through one frontend, {clients} clients",
                f"{statistics.median(ours):,.0f}",
                f"bare {statistics.median(theirs):,.0f}",
                ratio_with_spread([mine / bares for mine, bares in zip(ours, theirs, strict=True)]),
                "≥ 1.50",
            )


def paced(plan: Plan) -> None:
    """Processor time of a line when nothing is in a hurry, and each line goes by itself."""
    with servers() as make, closing(Bare()) as bare:
        server = make(PRONK_WORKERS="1", **ECHOING)
        for clients in plan.clients:
            pace = PACED // clients
            model, tokens = f"echo:{pace}", pace * PACED_SECONDS
            _relayed(server, clients, 1, model)  # loads
            before = _processor_seconds(server, bare)
            for _ in range(plan.rounds):
                took = _relayed(server, clients, tokens, model)
                if took > 1.5 * PACED_SECONDS:
                    raise SystemExit(f"{tokens} tokens at a pace of {pace} took {took:.1f} s")
            spent = _processor_seconds(server, bare) - before
            lines = plan.rounds * clients * tokens
            line(
                "echo",
                f"µs of processor a line at {PACED:,} lines/s, {clients} clients",
                f"{spent['frontend'] / lines * 1e6:.1f}",
                f"worker {spent['worker'] / lines * 1e6:.1f}",
                "",
                "",
            )


def replicas(plan: Plan) -> None:
    """Tokens per second of one busy model at a pace, with two simulated devices and with one.

    Nobody asks for the second replica: the queue of the first one does.
    """
    model = f"echo:{REPLICA_PACE}"
    devices = [{"name": f"sim{number}", "memory": "8GiB"} for number in range(2)]
    with servers() as make:
        one, two = (
            make(
                PRONK_WORKERS=str(number),
                PRONK_DEVICES=json.dumps(devices[:number]),
                PRONK_NUM_PARALLEL=str(REPLICA_SLOTS),
                **ECHOING,
            )
            for number in (1, 2)
        )
        for server in (one, two):  # loads, and loads again where the queue stays full
            _relayed(server, REPLICA_CLIENTS, REPLICA_TOKENS, model)
        work = REPLICA_CLIENTS * REPLICA_TOKENS
        ours, theirs = list[float](), list[float]()
        for _ in range(plan.rounds):
            ours.append(work / _relayed(two, REPLICA_CLIENTS, REPLICA_TOKENS, model))
            theirs.append(work / _relayed(one, REPLICA_CLIENTS, REPLICA_TOKENS, model))
    line(
        "echo",
        f"tokens/s on two devices, {REPLICA_CLIENTS} clients",
        f"{statistics.median(ours):,.0f}",
        f"one {statistics.median(theirs):,.0f}",
        ratio_with_spread([both / single for both, single in zip(ours, theirs, strict=True)]),
        "≥ 1.80",
    )


def _body(tokens: int, model: str = "echo") -> dict[str, Any]:
    return {"model": model, "prompt": WORD, "options": {"num_predict": tokens}}


def _relayed(server: Server, clients: int, tokens: int, model: str = "echo") -> float:
    """Seconds that it took; checks what one of the clients got."""
    took, answer = run(flood(server.port, clients, _body(tokens, model)))
    lines = [json.loads(text) for text in _chunked(answer).splitlines()]
    if [one["response"] for one in lines[:-1]] != [WORD] * tokens:
        raise SystemExit(f"asked for {tokens} tokens, got {len(lines) - 1} lines")
    return took


def _processor_seconds(server: Server, bare: Bare) -> Counter[str]:
    """What both sides and the clients, which are this process, have taken of the processor.

    It says where time goes, however busy the machine is with something else.
    """
    processes = {
        "clients": psutil.Process(),
        "bare": psutil.Process(bare.pid),
        "frontend": server.processes("pronk.frontend")[0],
        "worker": server.workers()[0],
    }
    times = {role: process.cpu_times() for role, process in processes.items()}
    return Counter({role: took.user + took.system for role, took in times.items()})


def _chunked(answer: bytes) -> bytes:
    """The body of an answer in HTTP's chunks."""
    parts = list[bytes]()
    place = answer.index(b"\r\n\r\n") + 4
    while place < len(answer):
        begin = answer.index(b"\r\n", place) + 2
        end = begin + int(answer[place:begin], 16)
        parts.append(answer[begin:end])
        place = end + 2
    return b"".join(parts)


ROWS: dict[str, Callable[[Plan], None]] = {"relay": relay, "paced": paced, "replicas": replicas}


def main() -> None:
    """Prints the table, row by row."""
    parser = argparse.ArgumentParser(description="everything around an engine, without one")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--clients", nargs="+", type=int, default=[64, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=2000, help="for each client")
    given = parser.parse_args()
    plan = Plan(tuple(given.clients), given.rounds, given.tokens)
    print(f"medians of {plan.rounds} rounds")
    print_table(ROWS, given.rows, plan)


if __name__ == "__main__":
    main()
