"""The life of a process that has one role, from its settings to its exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine

import uvloop

from .errors import PronkError
from .logs import configure_logging
from .settings import Settings
from .withheld import load_open_settings

CANNOT_START = 78
"""Exit status of a process that cannot begin its work as things are: a setting is wrong, another
process holds what it needs. (sysexits.h calls it EX_CONFIG.) By it `pronk serve` tells such a
process from one that died, however long either took to come that far."""


def run_role(role: str, run: Callable[[Settings], Coroutine[None, None, None]]) -> int:
    """Runs `run` to its end; `CANNOT_START`, and one line that says why, when it raises
    `PronkError`.
    """
    try:
        settings = load_open_settings()
        configure_logging(role, settings.log_level)
        uvloop.run(run(settings))
    except PronkError as error:
        print(f"pronk {role}: {error.message}", file=sys.stderr)
        return CANNOT_START
    return 0
