"""A program that uses a stranger's template once, in a process with little memory and time.

Nothing else bounds the memory that Jinja takes: fuel counts steps, and a line that doubles a text
takes gigabytes within a few of them.
"""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

MEMORY = 512 * 1024 * 1024
"""Bytes for such a process, beside those for what it is given."""
_MEMORY_PER_CHARACTER = 64
_SECONDS = 10
"""Of computing."""
PATIENCE = 60.0
"""Seconds on the clock, which may have to be shared with whatever else the machine does."""


class TooMuch(Exception):
    """The program took more memory or time than it may have."""


def run(module: str, order: Mapping[str, Any], *, given: int) -> dict[str, Any]:
    """What the program `module` answers to an order. `given` is the order's size in characters.

    Raises `TooMuch`.
    """
    memory = MEMORY + _MEMORY_PER_CHARACTER * given
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-m", module],
            input=json.dumps({"memory": memory, "seconds": _SECONDS, "order": order}).encode(),
            capture_output=True,
            timeout=PATIENCE,
            check=True,
            env={},  # nothing of ours is worth anything to a stranger's template
        )
        return json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        raise TooMuch("it takes too much memory or time") from None


def main(work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The program: reads one order as JSON, and writes what `work` makes of it."""
    said = json.load(sys.stdin)
    limits = {
        resource.RLIMIT_AS: said["memory"],
        resource.RLIMIT_CPU: said["seconds"],
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        with contextlib.suppress(ValueError, OSError):  # macOS knows no limit to address space
            resource.setrlimit(kind, (limit, limit))
    json.dump(work(said["order"]), sys.stdout)
