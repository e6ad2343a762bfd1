"""Reading small files that anybody may have put there, and remembering what was in them."""

from __future__ import annotations

import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

Stamp = tuple[int, int, int, int]
"""Changes when a file's content does: times of modification and change, size, inode."""

UNCHANGING: Stamp = (0, 0, 0, 0)
"""The stamp of what belongs to a digest: that never changes."""


class Damaged(Exception):
    """Something in the library is not as it should be. The text completes "model 'x' is damaged in
    the library: <text>" and holds no path.
    """


class Unreadable(Damaged):
    """Something in the library may not be read by the user that this process runs as."""


def problem_of(error: OSError, what: str) -> Damaged:
    """What an operating system's error means for `what`, a part of the library."""
    match error:
        case FileNotFoundError():
            return Damaged(f"{what} is missing")
        case PermissionError():
            return Unreadable(f"{what} may not be read by the user that Pronk runs as")
        case _:
            return Damaged(f"{what} cannot be read ({error.strerror})")


def stamp_of(status: os.stat_result) -> Stamp:
    """The stamp of the file that `status` is of."""
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def read_small(path: Path, limit: int, what: str) -> bytes:
    """The content of a regular file of at most `limit` bytes; `what` names it in errors.

    Raises `Damaged` when it is missing, unreadable, something else than a file, or too large.
    """
    try:
        # O_NONBLOCK: a FIFO in the file's place must not block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise Damaged(f"{what} is not a regular file")
            if status.st_size > limit:
                raise Damaged(f"{what} is larger than {limit // 1024} KiB")
            content = file.read(limit + 1)
            if len(content) > limit:
                raise Damaged(f"{what} grew while it was read")
            return content
    except OSError as error:
        raise problem_of(error, what) from None


class Remembered(Generic[T]):
    """What was worked out from files, as long as their stamps stay the same. For many threads.

    Holds values that weigh at most `limit` together, one each where nothing else is said; the ones
    not used for longest are dropped first.
    """

    def __init__(self, limit: int, *, weigh: Callable[[T], int] = lambda value: 1) -> None:
        self._limit = limit
        self._weigh = weigh
        self._weight = 0
        self._values: OrderedDict[Hashable, tuple[Stamp, T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, stamp: Stamp) -> T | None:
        """What was kept for `key`, if the file's stamp is still the same."""
        with self._lock:
            known = self._values.get(key)
            if known is None or known[0] != stamp:
                return None
            self._values.move_to_end(key)
            return known[1]

    def keep(self, key: Hashable, stamp: Stamp, value: T) -> T:
        """Keeps `value` and returns it."""
        with self._lock:
            if before := self._values.pop(key, None):
                self._weight -= self._weigh(before[1])
            self._values[key] = stamp, value
            self._weight += self._weigh(value)
            while self._weight > self._limit:
                _, (_, oldest) = self._values.popitem(last=False)
                self._weight -= self._weigh(oldest)
        return value
