"""The life of a process that has one role, from its settings to its exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine

import uvloop

from .errors import PronkError
from .logs import configure_logging
from .process import die_with_parent
from .settings import Settings
from .withheld import load_open_settings


def run_role(role: str, run: Callable[[Settings], Coroutine[None, None, None]]) -> int:
    """Runs `run` to its end; 1, and one line that says why, when it raises `PronkError`."""
    die_with_parent()
    try:
        settings = load_open_settings()
        configure_logging(role, settings.log_level)
        uvloop.run(run(settings))
    except PronkError as error:
        print(f"pronk {role}: {error.message}", file=sys.stderr)
        return 1
    return 0
