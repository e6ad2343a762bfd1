"""`python -m pronk.frontend --name frontend-00`: one frontend, until SIGTERM."""

import argparse
import functools
import sys

from ..protocol.role import run_role
from .server import run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="pronk.frontend", description=__doc__)
    parser.add_argument("--name", default="", help="stays the same over restarts")
    name = parser.parse_args().name
    sys.exit(run_role("frontend", functools.partial(run, name=name)))
