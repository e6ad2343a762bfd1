"""What came out of a simulation, in one line of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .world import Tally

HEADER = (
    "| trace | requests | utilization | waited mean | p95 | worst caller's p95 | others' p95 "
    "| loads | evictions | most replicas | prompts cached | ms a decision |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|",
)


def percentile(values: Sequence[float], part: float) -> float:
    """The value below which this part of all lies; not a number where there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else math.nan


def waits(tally: Tally, now: float) -> dict[str, list[float]]:
    """Seconds for which each caller's requests waited, or have waited by now."""
    by_caller: dict[str, list[float]] = {}
    for request in tally.requests:
        if not request.failed:
            began = now if request.began is None else request.began
            by_caller.setdefault(request.caller, []).append(began - request.arrived)
    return by_caller


def line(name: str, tally: Tally, devices: int, now: float) -> str:
    """One row."""
    by_caller = waits(tally, now)
    everyone = [wait for of_caller in by_caller.values() for wait in of_caller]
    worst = max(by_caller, key=lambda caller: percentile(by_caller[caller], 0.95))
    others = [wait for caller, of in by_caller.items() if caller != worst for wait in of]
    read = tally.read_again + tally.saved
    cells = [
        name,
        f"{len(tally.requests)}",
        f"{tally.busy_seconds / (devices * now):.0%}",
        f"{sum(everyone) / len(everyone):.2f} s",
        f"{percentile(everyone, 0.95):.2f} s",
        f"{percentile(by_caller[worst], 0.95):.2f} s ({worst})",
        f"{percentile(others, 0.95):.2f} s",
        f"{sum(tally.loads.values())}",
        f"{tally.evictions}",
        f"{max(tally.most_replicas.values(), default=0)}",
        f"{tally.saved / read:.0%}" if read else "",
        f"{1000 * sum(tally.decisions) / len(tally.decisions):.3f}",
    ]
    return "| " + " | ".join(cells) + " |"
