"""`python -m pronk.scheduler`: one scheduler, until SIGTERM."""

import sys

from ..protocol.process import die_with_parent

if __name__ == "__main__":
    die_with_parent()  # what else is imported takes seconds on a busy machine
    from ..protocol.role import run_role
    from .service import run

    sys.exit(run_role("scheduler", run))
