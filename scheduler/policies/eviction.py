"""Which replicas make room for another one: idle ones, the least recently used first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .placement import Placement
from .views import WorkerView

OVERTAKEN = 3.0
"""Seconds for which requests that a replica can take go first where another request needs it to
end: exchanging two models takes about as long as some answers."""

SHORTEST_STAY = 3.0
LONGEST_STAY = 60.0
STAY_PER_LOAD = 4.0
"""A replica for which others wait is not exchanged before it has stayed for so many times what
loading it took, within these seconds: so that at most a fifth of the time goes into loading."""

IDLE_PER_LOAD = 1.0
"""A replica that nobody waits for stays for so many times what loading it took."""


def stays_until(replica: WorkerView) -> float:
    """Time before which a replica that is asked for is not made to give way."""
    stay = min(LONGEST_STAY, max(SHORTEST_STAY, STAY_PER_LOAD * replica.load_seconds))
    return replica.ready_since + stay


def idles_until(replica: WorkerView) -> float:
    """Time before which a replica that nobody waits for is not made to give way.

    Whoever has had it loaded may have more to say; what was loaded in a moment, is so again.
    """
    stay = min(LONGEST_STAY, IDLE_PER_LOAD * replica.load_seconds)
    return replica.ready_since + stay


def freed(replicas: Sequence[WorkerView]) -> dict[str, int]:
    """Bytes on each device that come back when these are gone."""
    bytes_of: dict[str, int] = {}
    for replica in replicas:
        for device, size in replica.taken.items():
            bytes_of[device] = bytes_of.get(device, 0) + size
    return bytes_of


def make_room(
    candidates: Sequence[WorkerView],
    fits: Callable[[Mapping[str, int]], Placement | None],
    *,
    worker: bool,
) -> tuple[list[WorkerView], Placement] | None:
    """The fewest of the first candidates that have to go, and the placement that follows.

    `fits` says what can be placed once so many bytes have come back on each device, and more bytes
    never make it say less. With `worker`, at least one has to go for its worker's sake. None where
    all of them together are not enough.
    """
    least = 1 if worker else 0
    if len(candidates) < least:
        return None
    low, high = least, least
    placement = fits(freed(candidates[:high]))
    while placement is None:
        if high >= len(candidates):
            return None
        low, high = high + 1, min(len(candidates), max(1, 2 * high))
        placement = fits(freed(candidates[:high]))
    while low < high:
        middle = (low + high) // 2
        if found := fits(freed(candidates[:middle])):
            high, placement = middle, found
        else:
            low = middle + 1
    return _needed(list(candidates[:high]), placement, fits, least)


def _needed(
    chosen: list[WorkerView],
    placement: Placement,
    fits: Callable[[Mapping[str, int]], Placement | None],
    least: int,
) -> tuple[list[WorkerView], Placement]:
    """Spares those whose memory lies elsewhere, then each without which there is a place, too."""
    for replica in list(chosen):
        if len(chosen) > least and not placement.taken.keys() & replica.taken.keys():
            chosen.remove(replica)
    for replica in reversed(list(chosen)):
        if len(chosen) <= least:
            break
        without = [other for other in chosen if other is not replica]
        if found := fits(freed(without)):
            chosen, placement = without, found
    return chosen, placement
