"""The library's table: what the store does with a disk, beside the least that the disk allows.

usage: make bench-library ARGS="--rows tags pull --models 1000 --rounds 9"

Both sides take turns, and each round's ratio is taken by itself. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from .library_plan import Plan
from .pulling import pull
from .stand import print_table
from .tags import tags

ROWS: dict[str, Callable[[Plan], None]] = {"tags": tags, "pull": pull}


def main() -> None:
    """Prints the table, row by row."""
    parser = argparse.ArgumentParser(description="the model library beside the bare disk")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--models", type=int, default=1000)
    given = parser.parse_args()
    plan = Plan(given.rounds, given.models)
    print(f"medians of {plan.rounds} rounds")
    print_table(ROWS, given.rows, plan)


if __name__ == "__main__":
    main()
