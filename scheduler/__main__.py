"""`python -m pronk.scheduler`: one scheduler, until SIGTERM."""

from __future__ import annotations

import sys

import uvloop

from ..protocol.errors import PronkError
from ..protocol.logs import configure_logging
from ..protocol.process import die_with_parent
from ..protocol.settings import load_settings
from .service import run


def main() -> int:
    """Runs the scheduler; 1 when its settings or its state directory do not allow it."""
    die_with_parent()
    try:
        settings = load_settings()
        configure_logging("scheduler", settings.log_level)
        uvloop.run(run(settings))
    except PronkError as error:
        print(f"pronk scheduler: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
