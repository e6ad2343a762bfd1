"""How many replicas a model has: one more where its queue stays full, one less when it idles.

The constants were chosen with the simulator in `tests/simulator`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .views import WorkerView

GROW_AFTER = 2.0
"""Seconds for which a request has to have waited for a slot before its model gets one more replica;
longer where loading takes longer: whoever waits as long as the remedy takes pays at most twice."""

UNUSED = 10.0
"""Seconds for which another model has to have been idle before it makes room for one more replica
of a model that has one."""

SURPLUS_IDLE = 15.0
"""Seconds after which a replica beside others of its model that has nothing to do ends."""


def is_crowded(head_since: float, waiting: int, replicas: Sequence[WorkerView], now: float) -> bool:
    """Whether the queue of a model that is served has been longer than its slots for too long.

    `head_since` is when the first of those that wait came. A replica that has only just become
    ready gets the time to do something about it.
    """
    if not waiting or not replicas or any(replica.free_slots > 0 for replica in replicas):
        return False
    ready = max(replica.ready_since for replica in replicas)
    loading = max(replica.load_seconds for replica in replicas)
    return now - max(head_since, ready) >= max(GROW_AFTER, loading)


def spare_cores(cores: int, computing: Iterable[WorkerView]) -> int:
    """Cores that nobody would use if all of these computed with the threads that they may have.

    One more replica on the CPU only helps with cores of its own: else they take them from each
    other.
    """
    return cores - sum(min(replica.most_threads, cores) for replica in computing)


def surplus(replicas: Sequence[WorkerView], least: int, now: float) -> WorkerView | None:
    """The replica that is one too many: idle beside others, the one with the smallest context."""
    if len(replicas) <= max(1, least):
        return None
    idle = [
        replica
        for replica in replicas
        if not replica.running and now - max(replica.last_used, replica.ready_since) >= SURPLUS_IDLE
    ]
    if not idle:
        return None
    largest = max(replica.context_length for replica in replicas)
    if all(replica in idle for replica in replicas) and len(idle) == len(replicas):
        # One stays: one with the largest context, which serves whatever the others do.
        keep = max(idle, key=lambda replica: (replica.context_length == largest, replica.last_used))
        idle.remove(keep)
    return min(idle, key=lambda replica: (replica.context_length, replica.last_used))
