"""`python -m pronk.scheduler`: one scheduler, until SIGTERM."""

import sys

from ..protocol.role import run_role
from .service import run

if __name__ == "__main__":
    sys.exit(run_role("scheduler", run))
