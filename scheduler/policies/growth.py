"""Replicas beyond those that requests have loaded: more of a busy model, fewer of an idle one."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .eviction import make_room
from .look import Look
from .placement import Placement, Wishes, is_near, place
from .replicas import UNUSED, is_crowded, spare_cores, surplus
from .views import WorkerState

MOST_TRIED = 16
"""Models for which one more replica is looked for in one look: to find no place for one among a
thousand devices takes as long as serving some requests."""

STAND_AGAIN = 10.0
"""Seconds between two loads of a model that is to stand: one that cannot be loaded, or dies at
once, must not take up all workers."""


def stand(look: Look) -> None:
    """Loads what is to be there although nobody asks for it, where there is room."""
    board = look.board
    for digest, context in list(board.standing.items()):
        there = len(board.replicas.get(digest, {}))
        least = board.limits(digest).min_replicas
        if there >= max(1, least):
            if not least:
                del board.standing[digest]
            continue
        if digest in board.queues and not there:
            continue  # whoever waits for it has it loaded
        if board.stood.get(digest, -math.inf) + STAND_AGAIN > look.now:
            continue
        if _one_more(look, digest, context, there):
            board.stood[digest] = look.now
            if not least:
                # Once is enough: from then on it stays as long as any other model.
                del board.standing[digest]


def grow(look: Look) -> None:
    """Gives some of the models whose queue stays full one more replica each."""
    board = look.board
    tried = 0
    for digest in board.ranks():
        queue = board.queues.get(digest)
        if queue is None or tried >= MOST_TRIED:
            continue
        replicas = board.replicas.get(digest, {})
        ready = [view for view in replicas.values() if view.state is WorkerState.READY]
        if (
            not queue.requests
            or len(ready) < len(replicas)
            or len(replicas) >= board.limits(digest).most
            or digest in board.claims
            or any(view.id in board.claimed for view in ready)
            or any(look.slots_of(view) > 0 for view in ready)
            or not is_crowded(queue.first.since, queue.requests, ready, look.now)
        ):
            continue
        context = max(queue.largest, *(view.context_length for view in ready))
        tried += 1
        _one_more(look, digest, context, len(replicas))


def _one_more(look: Look, digest: str, context: int, there: int) -> bool:
    """One more replica beside those that are there, where it can be had without harm.

    Says whether it is being loaded; else it may be that room is made for it.
    """
    board = look.board
    footprint = board.footprints(digest, context)
    if footprint is None or not board.devices:
        return False
    holders = board.replicas.get(digest, {}).values()
    # Where others compute, it would only take their time.
    avoid = frozenset(name for view in holders for name in view.taken) | {
        name for name, replicas in board.busy.items() if replicas
    }
    wishes = Wishes(None, None, False, tuple(board.limits(digest).devices))
    ideal = board.ideal(digest, footprint, wishes)
    if ideal is None:
        return False
    elsewhere = Wishes(None, None, False, wishes.only, avoid)
    reserved = {device for claim in board.claims.values() for device in claim.devices}

    def fits(extra: Mapping[str, int]) -> Placement | None:
        free = dict(look.free())
        for device, size in extra.items():
            free[device] = free.get(device, 0) + size
        for device in reserved:
            free[device] = 0
        placement = place(look.devices(), footprint, elsewhere, free=free, busy=board.busy)
        if placement is None or not is_near(placement, ideal):
            return None
        if there and not placement.shares and not _has_spare_cores(look, digest):
            return None
        return placement

    unused = [
        view
        for view in look.idle_of_others(digest)
        if look.now - view.last_used >= UNUSED and digest in board.queues
    ]
    blank = look.has_blank("")
    if blank and (placement := fits({})):
        look.load(digest, None, context, footprint, placement)
        return True
    if not board.ending and (found := make_room(unused, fits, worker=not blank)):
        for replica in found[0]:
            look.end(replica, "a busy model needs its place for one more replica")
    return False


def _has_spare_cores(look: Look, digest: str) -> bool:
    board = look.board
    computing = [
        view
        for worker in board.computing
        if (view := board.workers[worker]).running or look.now - view.last_used < UNUSED
    ]
    loading = [
        view
        for replicas in board.replicas.values()
        for view in replicas.values()
        if view.state is WorkerState.LOADING and view.cores
    ]
    cores = board.rules.cores
    needed = min(look.threads_of(digest), cores)
    return spare_cores(cores, [*computing, *loading]) >= needed


def shrink(look: Look) -> None:
    """Ends replicas that are one too many."""
    board = look.board
    for digest, replicas in board.replicas.items():
        if len(replicas) < 2 or digest in board.queues:
            continue
        ready = [
            view
            for view in replicas.values()
            if view.state is WorkerState.READY and view.id not in look.given
        ]
        if one := surplus(ready, board.limits(digest).min_replicas, look.now):
            look.end(one, "its model has more replicas than it needs")
