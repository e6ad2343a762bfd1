"""`python -m pronk.frontend --name frontend-00`: one frontend, until SIGTERM."""

import argparse
import functools
import sys

from ..protocol.process import die_with_parent

if __name__ == "__main__":
    die_with_parent()  # what else is imported takes seconds on a busy machine
    from ..protocol.role import run_role
    from .server import run

    parser = argparse.ArgumentParser(prog="pronk.frontend", description=__doc__)
    parser.add_argument("--name", default="", help="stays the same over restarts")
    name = parser.parse_args().name
    sys.exit(run_role("frontend", functools.partial(run, name=name)))
