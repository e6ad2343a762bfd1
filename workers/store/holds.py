"""Blobs that somebody needs while a model is made of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection
from types import TracebackType


class Holds:
    """How many hold each blob. For many threads; nothing here waits for a disk."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()

    def count(self, digest: str) -> int:
        """How many hold this blob."""
        with self._lock:
            return self._held[digest]

    def digests(self) -> set[str]:
        """All that are held."""
        with self._lock:
            return set(self._held)

    def change(self, digest: str, by: int) -> None:
        """One more, or one less, holds this blob."""
        with self._lock:
            self._held[digest] += by
            if not self._held[digest]:
                del self._held[digest]


class Hold:
    """Blobs that nobody prunes while this is open. For many threads."""

    def __init__(self, holds: Holds) -> None:
        self._holds = holds
        self._lock = threading.Lock()
        self._digests: set[str] = set()
        self._closed = False

    def add(self, digest: str) -> None:
        """Holds one more blob, whether it is there yet or not.

        Nothing once it was closed: a thread may still be at work for a change that was cancelled,
        and what it adds would be held for ever.
        """
        with self._lock:
            if digest not in self._digests and not self._closed:
                self._digests.add(digest)
                self._holds.change(digest, 1)

    def keep_only(self, digests: Collection[str]) -> None:
        """Lets go of all others: what is being made does without them."""
        with self._lock:
            for digest in self._digests.difference(digests):
                self._holds.change(digest, -1)
            self._digests.intersection_update(digests)

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            self._closed = True
            while self._digests:
                self._holds.change(self._digests.pop(), -1)
