"""Programs that use a stranger's template, in processes with little memory and time.

Nothing else bounds the memory that Jinja takes: fuel counts steps, and a line that doubles a text
takes gigabytes within a few of them. `run` has a process of its own for one order; what is asked
again and again goes to a process that stays (`coprocess`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

_SECONDS = 10
"""Of computing."""
PATIENCE = 60.0
"""Seconds on the clock, which may have to be shared with whatever else the machine does."""

_MEMORY = 512 * 1024 * 1024
_MEMORY_PER_CHARACTER = 64


class TooMuch(Exception):
    """The program took more memory or time than it may have."""

    def __init__(self) -> None:
        super().__init__("it takes too much memory or time")


def memory_for(given: int) -> int:
    """Bytes of address space for a process that is given an order of so many characters."""
    return _MEMORY + _MEMORY_PER_CHARACTER * given


def command(module: str) -> list[str]:
    """How a program is started. Its environment has to be empty: nothing of ours is worth anything
    to a stranger's template.
    """
    return [sys.executable, "-I", "-m", module]


def run(module: str, order: Mapping[str, Any], *, given: int) -> dict[str, Any]:
    """What the program `module` answers to an order. `given` is the order's size in characters.

    Raises `TooMuch`.
    """
    said = {"memory": memory_for(given), "seconds": _SECONDS, "order": order}
    try:
        done = subprocess.run(
            command(module),
            input=json.dumps(said).encode(),
            capture_output=True,
            timeout=PATIENCE,
            check=True,
            env={},
        )
        return json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        raise TooMuch from None
