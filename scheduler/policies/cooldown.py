"""Which models are left alone for a while, because loading them failed again and again.

Pure: moments are told, on any clock that grows. A worker that dies while it loads may have been
killed by anybody, so that load is tried again; but a file that ends every process which reads it
must not keep the workers busy with dying.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...protocol.messages.failure import Failure

FAILURES = 3
"""Loads of one model that fail in a row before it is left alone."""

MEMORY = 600.0
"""Seconds after which a failure is no part of a row any more."""


@dataclass(frozen=True, slots=True)
class _Row:
    failures: int
    context_length: int
    """The smallest with which a load failed: less may still go well where memory is short."""
    failure: Failure
    """The last one."""
    at: float


class Cooldowns:
    """The models whose last loads failed."""

    def __init__(self, seconds: float) -> None:
        """`seconds` is how long a model is left alone."""
        self._seconds = seconds
        self._rows: dict[str, _Row] = {}
        """By digest."""

    def failed(self, digest: str, context_length: int, failure: Failure, moment: float) -> bool:
        """A load has failed; returns whether that is one too many, and the model is left alone.

        One that fails again after that time was over is left alone again at once.
        """
        self._rows = {one: row for one, row in self._rows.items() if moment - row.at <= MEMORY}
        row = self._rows.get(digest, _Row(0, context_length, failure, moment))
        row = replace(
            row,
            failures=row.failures + 1,
            context_length=min(row.context_length, context_length),
            failure=failure,
            at=moment,
        )
        self._rows[digest] = row
        return row.failures >= FAILURES

    def loaded(self, digest: str, context_length: int) -> None:
        """A load went well, and with it all that need no more context."""
        row = self._rows.get(digest)
        if row and row.context_length <= context_length:
            del self._rows[digest]

    def refusal(self, digest: str, context_length: int, moment: float) -> Failure | None:
        """Why the model is not loaded just now; None where it may be tried."""
        row = self._rows.get(digest)
        if row is None or row.failures < FAILURES or context_length < row.context_length:
            return None
        left = row.at + self._seconds - moment
        if left <= 0:
            return None
        message = (
            f"{row.failure.message}; this happened {row.failures} times in a row, and is tried "
            f"again in {left:.0f} s"
        )
        return Failure(row.failure.code, message, retry_after=left)
