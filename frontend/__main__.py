"""`python -m pronk.frontend`: one frontend, until SIGTERM."""

import sys

from ..protocol.role import run_role
from .server import run

if __name__ == "__main__":
    sys.exit(run_role("frontend", run))
