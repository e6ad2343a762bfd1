"""`python -m pronk.workers worker --name worker-00` and `python -m pronk.workers store`."""

from __future__ import annotations

import argparse
import sys

from ..protocol.process import die_with_parent


def main() -> None:
    """Runs one role until its end."""
    die_with_parent()  # what else is imported takes seconds on a busy machine
    parser = argparse.ArgumentParser(prog="pronk.workers", description=__doc__)
    roles = parser.add_subparsers(dest="role", required=True)
    worker = roles.add_parser("worker", help="blank until told, then one replica of one model")
    worker.add_argument("--name", required=True, help="stays the same over restarts")
    roles.add_parser("store", help="keeps the model library")
    arguments = parser.parse_args()
    # A role's imports are its own: the store never pays for the engine's, nor the other way round.
    if arguments.role == "worker":
        from .entry import main as worker_main

        sys.exit(worker_main(arguments.name))
    from .store.service import main as store_main

    store_main()


if __name__ == "__main__":
    main()
