"""Which models other hosts were found to lack.

A host that joined has a model library of its own. What is not in it is learnt when a worker there
is told to load it, and believed for a while: somebody may be copying the file just now.
"""

from __future__ import annotations

from ..protocol.messages.fleet import ProcessIdentity

BELIEVED_SECONDS = 60.0

_MOST = 10_000


class Absences:
    """Pairs of host and model, each with a time until which it counts. Times are monotonic."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str, str], float] = {}

    def note(self, process: ProcessIdentity, digest: str, moment: float) -> None:
        """The host of this process lacks the model."""
        if len(self._until) >= _MOST:
            self._until.clear()  # learnt again by asking
        key = (process.host_boot_id, process.pid_namespace, digest)
        self._until[key] = moment + BELIEVED_SECONDS

    def of(self, process: ProcessIdentity, moment: float) -> frozenset[str]:
        """Digests that the host of this process lacks."""
        for key in [key for key, until in self._until.items() if until <= moment]:
            del self._until[key]
        here = (process.host_boot_id, process.pid_namespace)
        return frozenset(digest for *host, digest in self._until if tuple(host) == here)
