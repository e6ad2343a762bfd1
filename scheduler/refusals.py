"""What a caller is told whose request could not be begun, and when another try makes sense."""

from __future__ import annotations

from ..protocol.errors import Code
from ..protocol.messages.failure import Failure

SOONEST, LATEST = 1.0, 60.0
"""Bounds in seconds of what is said about another try."""


def queue_full(waiting: int, waited: float) -> Failure:
    """There is no place for it among the `waiting` requests.

    `waited` is for how many seconds its caller's oldest request has been waiting: so far behind is
    this caller, and sooner another try would only be refused again.
    """
    return Failure(
        Code.QUEUE_FULL,
        f"server busy, please try again: maximum pending requests exceeded ({waiting} are waiting)",
        retry_after=min(max(SOONEST, waited), LATEST),
    )


def waited_too_long(seconds: float) -> Failure:
    """It waited as long as requests may.

    A 503 as for a full queue, and no 504: nothing was begun, so that clients and proxies can try
    again, here or elsewhere, without doing anything twice.
    """
    return Failure(
        Code.QUEUE_FULL,
        f"server busy, please try again: the request waited for {seconds:g} s and was not begun "
        "(PRONK_QUEUE_TIMEOUT)",
        retry_after=min(max(SOONEST, seconds), LATEST),
    )
