"""Which replica a request goes to: where most of its prompt has been read, unless that costs more.

The costs of a choice are counted in generated tokens. Reading is cheaper than generating, because
many tokens of a prompt are computed at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from ...protocol.recent import LONGEST_CHAIN, MOST_PREFIXES, Recent
from .views import Demand, WorkerView

READ_PER_GENERATED = 16
"""Tokens of a prompt that are read in the time in which one is generated."""

USUAL_ANSWER = 256
"""Tokens of an answer, where a request's estimated cost does not tell prompt and answer apart."""

CROWDING = 0.05
"""Part by which each request beside it makes a request slower: a batch is cheap and not free."""

HELD = 1.0
"""Longest time in seconds for which a request waits for the replica that has read its prompt while
another one is free."""


class PrefixIndex:
    """Which workers have read which beginnings of prompts, as far as anybody remembers."""

    def __init__(self, bound: int = MOST_PREFIXES) -> None:
        self._bound = bound
        self._of_worker: dict[str, Recent] = {}
        self._holders: dict[bytes, set[str]] = {}

    def note(self, worker: str, chain: Iterable[bytes]) -> None:
        """A worker has read, or is about to read, a prompt with this chain, or says so itself."""
        recent = self._of_worker.setdefault(worker, Recent(self._bound))
        hashes = list(islice(chain, self._bound))
        for item in hashes:
            self._holders.setdefault(item, set()).add(worker)
        for item in recent.add(hashes):
            self._drop(worker, item)

    def forget(self, worker: str) -> None:
        """The worker is gone, and its cache with it."""
        for item in self._of_worker.pop(worker, ()):
            self._drop(worker, item)

    def _drop(self, worker: str, item: bytes) -> None:
        holders = self._holders[item]
        holders.discard(worker)
        if not holders:
            del self._holders[item]

    def matched(self, chain: Sequence[bytes], among: Iterable[str]) -> dict[str, int]:
        """How many links of the chain each of these workers has read; those with none are absent.

        The first link names the model alone, and every replica has it.
        """
        if len(chain) < 2:
            return {}
        missing = set(among)
        found: dict[str, int] = {}
        for index in range(min(len(chain), LONGEST_CHAIN) - 1, 0, -1):
            holders = self._holders.get(chain[index])
            if not holders:
                continue
            for worker in missing & holders:
                found[worker] = index
                missing.discard(worker)
            if not missing:
                break
        return found


def route(
    demand: Demand,
    replicas: Sequence[WorkerView],
    free: Mapping[str, int],
    matched: Mapping[str, int],
    waited: float,
) -> WorkerView | None:
    """The replica for a request; None when it is better to wait for one that is full.

    `replicas` all suit it and at least one has a free slot; `free` counts the free slots of each;
    `matched` is the number of its chain's links that each has read.
    """
    if len(replicas) == 1:
        return replicas[0]
    links = max(1, min(len(demand.prefix), LONGEST_CHAIN) - 1)
    prompt = max(0, demand.cost - USUAL_ANSWER)
    best: WorkerView | None = None
    best_key: tuple[float, int, float] = (0.0, 0, 0.0)
    patient = waited < HELD
    for replica in replicas:
        slots = free[replica.id]
        if slots <= 0 and not (patient and matched.get(replica.id)):
            continue
        beside = replica.running + replica.free_slots - max(0, slots)
        unread = prompt * (1 - matched.get(replica.id, 0) / links)
        cost = unread / READ_PER_GENERATED + USUAL_ANSWER * CROWDING * beside
        if slots <= 0:
            # Of so many answers, each somewhere between its beginning and its end, one ends soon.
            cost += USUAL_ANSWER / (beside + 1)
        key = (cost, beside, -replica.last_used)
        if best is None or key < best_key:
            best, best_key = replica, key
    return best if best is not None and free[best.id] > 0 else None
