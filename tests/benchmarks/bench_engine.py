"""The engine's table: what the whole server does, beside raw llama.cpp on the same machine.

usage: make bench-engine ARGS="--rows widths holes --models 12m --rounds 5 --threads 2"

Both sides have the model loaded and take turns, so that a machine that gets warmer or busier does
so for both; each round's ratio is taken by itself. Requests are timed from their first byte sent to
the last byte received: reading prompts, starting requests and every hop between processes count.
The raw side may use the KV cache's mode that suits it better. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from support.models import ensure_model

from .cold import cold
from .conversation import conversation
from .memory import memory
from .overhead import overhead
from .prompts import first_token, second_turn, system_prompt
from .speed import holes, structured, widths
from .stand import Plan, print_table

ROWS: dict[str, Callable[[Plan], None]] = {
    "widths": widths,
    "holes": holes,
    "first-token": first_token,
    "cold": cold,
    "structured": structured,
    "second-turn": second_turn,
    "system-prompt": system_prompt,
    "overhead": overhead,
    "conversation": conversation,
    "memory": memory,
}


def main() -> None:
    """Prints the table, row by row."""
    parser = argparse.ArgumentParser(description="the whole server beside raw llama.cpp")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--models", nargs="+", choices=["12m", "0.5b"], default=["12m", "0.5b"])
    parser.add_argument("--widths", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--requests", type=int, default=10_000, help="of the row memory")
    given = parser.parse_args()
    plan = Plan(
        tuple(given.models), tuple(given.widths), given.rounds, given.threads, given.requests
    )
    for model in plan.models:
        ensure_model(model)  # type: ignore[arg-type]
    print(f"{plan.threads} threads, medians of {plan.rounds} rounds")
    print_table(ROWS, given.rows, plan)


if __name__ == "__main__":
    main()
