"""A blob on its way: the file that grows, what of it is there, and its digest."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from ..disk import FILE_MODE
from .journal import Arrived, Journal, boot_id, read_journal, write_all
from .ranges import Ranges

MIB = 1024 * 1024
JOURNALED = 4 * MIB
"""Bytes of a blob from which on it has a journal. Smaller ones are fetched again instead: that is
sooner done than writing down how far they are."""
_READ = MIB

# macOS has no fdatasync.
_sync = getattr(os, "fdatasync", os.fsync)


class Shortened(Exception):
    """The file has lost bytes that were in it: somebody else writes there."""


class Partial:
    """The unfinished file of one blob. All methods block; they may run in several threads at once,
    but for `follow`, of which one at a time may run.

    Bytes may come in any order. The digest is computed from the file, and not from what was sent:
    it is that of what lies there, and what an earlier process has written is part of it in the same
    way. What was written just now is in the system's memory still.
    """

    def __init__(self, path: Path, digest: str, size: int) -> None:
        self.path = path
        self.size = size
        self.digest = digest
        self._journaled = size >= JOURNALED
        self._journal_path = path.with_name(path.name + ".json")
        self._boot = boot_id()
        self._journal = Journal(self._journal_path, digest, size, self._boot)
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._busy = 0
        self._closed = False
        self._hash = hashlib.sha256()
        self._hashed = 0
        self._buffer = bytearray(_READ)
        self._file = -1

    def open(self) -> None:
        """Opens the file, or makes it, and finds out what of it is there. Raises OSError.

        Nobody else may have it open: the library's lock keeps other processes out.
        """
        with self._in_use():
            self._file = _opened(self.path)
            self._resume()

    def _resume(self) -> None:
        length = os.fstat(self._file).st_size
        arrived = Arrived()
        if self._journaled:
            arrived = read_journal(self._journal_path, self.digest, self.size, self._boot)
        # What is claimed beyond the end has been lost.
        arrived = Arrived(arrived.there.below(length), arrived.durable.below(length))
        self._journal.arrived = arrived
        if self._journaled:
            # Before the file grows: an old journal could claim holes of the new one.
            self._journal.begin(arrived)
        end = max((end for _, end in arrived.there), default=0)
        if length > end:  # what the journal does not claim may be anything
            os.ftruncate(self._file, end)

    @property
    def there(self) -> Ranges:
        """A copy of what is there."""
        with self._lock:
            return Ranges(self._journal.arrived.there)

    def write(self, offset: int, blocks: list[bytes]) -> None:
        """Writes blocks one behind the other, and the journal after them. Raises OSError."""
        with self._in_use():
            write_all(self._file, blocks, offset)
            if self._journaled:
                with self._lock:
                    self._journal.note(offset, offset + sum(map(len, blocks)))

    def settle(self) -> None:
        """Brings what is there to the disk, and the journal's word for it. Raises OSError."""
        with self._in_use():
            self._settle()

    def _settle(self) -> None:
        ranges = self.there
        _sync(self._file)
        if not self._journaled:
            return
        with self._lock:
            journal = self._journal.settle(ranges)
        try:
            os.fsync(journal)  # others write meanwhile
        finally:
            os.close(journal)

    def follow(self, upto: int) -> str | None:
        """Goes on computing the digest, at most up to this byte, all bytes before which are there;
        returns it when that was the last one. Raises OSError and `Shortened`.
        """
        with self._in_use():
            view = memoryview(self._buffer)
            while self._hashed < upto:
                part = view[: min(_READ, upto - self._hashed)]
                count = os.preadv(self._file, [part], self._hashed)
                if not count:
                    raise Shortened
                self._hash.update(part[:count])
                self._hashed += count
        return self._hash.hexdigest() if self._hashed == self.size else None

    def start_over(self) -> None:
        """Forgets what is there: it is not what it should be. Nothing is written meanwhile."""
        with self._in_use(), self._lock:
            if self._journaled:
                self._journal.begin(Arrived())
            os.ftruncate(self._file, 0)
            self._hash = hashlib.sha256()
            self._hashed = 0

    def close(self) -> None:
        """Waits for what other threads do with the file, and ends. Raises OSError.

        What is there stays for the next one, unless it is too little to be worth a journal.
        """
        with self._lock:
            self._closed = True
            self._idle.wait_for(lambda: not self._busy)
        keep = self._journaled and self.there.size > 0
        try:
            if keep and self._file >= 0 and self.path.exists():
                self._settle()
        finally:
            self._journal.close()
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
        if not keep:
            # In this order: a journal without its file claims nothing.
            self.path.unlink(missing_ok=True)
            self._journal_path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        """The file's number stays that of this file: a closed one's would become another file's."""
        with self._lock:
            if self._closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            self._busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1
                self._idle.notify_all()


def _opened(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(path, flags, FILE_MODE)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(errno.EISDIR, "not a regular file", str(path))
