"""When replicas that compute on the processor are told of other thread counts."""

from __future__ import annotations

from .look import Look
from .threads import share_cores
from .views import Action, SetThreads


def set_threads(look: Look, now_or_later: bool) -> None:
    """Gives those that compute on the processor their threads.

    Whoever has too many gives them back at once. Whoever may have more gets them when it begins
    to work, or else about a second later: so a pause of a moment changes nothing.
    """
    board = look.board
    used = look.slots_used() & board.computing.keys()
    if not (now_or_later or used or board.cores_changed):
        return
    board.cores_changed = False
    counts = share_cores(board.rules.cores, look.busy_on_cores())
    changes: list[Action] = []
    for worker, threads in counts.items():
        view = board.workers[worker]
        begins = not view.running
        if threads < view.threads or (threads > view.threads and (now_or_later or begins)):
            changes.append(SetThreads(worker, threads))
    # First of all, so that the next step already has them.
    look.actions[:0] = changes
