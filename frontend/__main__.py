"""`python -m pronk.frontend`: one frontend, until SIGTERM."""

from __future__ import annotations

import sys

import uvloop

from ..protocol.errors import PronkError
from ..protocol.logs import configure_logging
from ..protocol.process import die_with_parent
from ..protocol.settings import load_settings
from .server import run


def main() -> int:
    """Runs a frontend; 1 when its settings, its address or the scheduler do not allow it."""
    die_with_parent()
    try:
        settings = load_settings()
        configure_logging("frontend", settings.log_level)
        uvloop.run(run(settings))
    except PronkError as error:
        print(f"pronk frontend: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
