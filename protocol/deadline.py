"""How long a request may take: a point in time that travels with it, and what follows beyond it.

Everyone who has the request ends it: the scheduler while it waits, the worker between two steps,
and the frontend that owns it, should neither of them be able to. All say the same.
"""

from __future__ import annotations

import time

from .errors import Code, PronkError


def deadline_after(seconds: float) -> float | None:
    """Unix time at which `seconds` from now are over; None where 0 says that there is no limit."""
    return time.time() + seconds if seconds > 0 else None


def is_over(deadline: float | None, moment: float) -> bool:
    """Whether a deadline lies before `moment`, in Unix time. None never does."""
    return deadline is not None and deadline < moment


def deadline_exceeded() -> PronkError:
    """The end of a request whose time is over."""
    return PronkError(
        Code.DEADLINE_EXCEEDED,
        "the request took longer than it may (PRONK_REQUEST_TIMEOUT); ask for a shorter answer, or "
        "try again when the server is less busy",
    )
