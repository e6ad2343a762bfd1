"""What a confined program does itself: it bounds its own memory and time, reads orders, answers.

Imports next to nothing, so that such a process starts quickly.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

Work = Callable[[dict[str, Any]], dict[str, Any]]

LENGTH_BYTES = 8
"""Of the number, the biggest byte first, that stands before each order and answer of a process
that stays."""


def main(work: Work) -> None:
    """The program that works once: reads one order as JSON, and writes what `work` makes of it."""
    said = json.load(sys.stdin)
    _bound(said["memory"], said["seconds"])
    json.dump(work(said["order"]), sys.stdout)


def serve(begin: Callable[[dict[str, Any]], Work]) -> None:
    """The program that stays: `begin` makes of its first order what works on all later ones.

    It ends when nobody is left who could give it an order.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is meant for who gives the orders
    orders, answers = sys.stdin.buffer, sys.stdout.buffer
    work: Work | None = None
    with contextlib.suppress(BrokenPipeError):
        while (said := _read(orders)) is not None:
            if work is None:
                work = begin(said)
                continue
            _bound(said["memory"], said["seconds"])
            answer = encoded(work(said["order"]))
            answers.write(len(answer).to_bytes(LENGTH_BYTES) + answer)
            answers.flush()


def encoded(value: Mapping[str, Any]) -> bytes:
    """As an order or an answer is written."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _read(orders: BinaryIO) -> dict[str, Any] | None:
    length = orders.read(LENGTH_BYTES)
    if len(length) < LENGTH_BYTES:
        return None
    return json.loads(orders.read(int.from_bytes(length)).decode("utf-8", "surrogatepass"))


def _bound(memory: int, seconds: int) -> None:
    """From now on at most so many bytes of address space in all, and more seconds of computing."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    limits = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: int(usage.ru_utime + usage.ru_stime) + 1 + seconds,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        _, most = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:
            limit = min(limit, most)
        with contextlib.suppress(ValueError, OSError):  # macOS knows no limit to address space
            resource.setrlimit(kind, (limit, most))
