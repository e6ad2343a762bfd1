"""Where Pronk keeps what is unfinished: `.pronk` in the library, which Ollama leaves alone.

    partial/sha256-<digest>   downloads that go on where they stopped; a journal may lie beside one
    staged/sha256-<digest>    whole blobs that no manifest names yet
    recorded/<digest>         which blobs Pronk itself has put into `blobs`
    uploads/, scratch/        what is of no use to another process; removed when one starts
    lock                      held by the one process that changes this library

Ollama deletes from `blobs` whatever no manifest names, so nothing unfinished may lie there.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
from pathlib import Path

from ...protocol.errors import Code, PronkError
from .disk import DIRECTORY_MODE, FILE_MODE, make_directory, new_name, require_directory

_log = logging.getLogger(__name__)

NAME = ".pronk"

_DIGEST = re.compile(r"[0-9a-f]{64}")
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def blob_name(digest: str) -> str:
    """The name of a blob's file. Raises `PronkError` for what is no digest, so that no path made of
    it leads elsewhere.
    """
    if not _DIGEST.fullmatch(digest):
        raise PronkError(
            Code.INVALID_REQUEST,
            f"{digest[:80]!a} is not a digest; one is sha256: and 64 hexadecimal digits, in lower "
            "case",
        )
    return f"sha256-{digest}"


class OwnFiles:
    """Names and creates everything in `.pronk`. Not for several threads at once."""

    def __init__(self, root: Path, blobs: Path) -> None:
        # A link may have the blobs on another disk, and what grows has to lie on the same one.
        self.top = (root if _same_disk(root, blobs) else blobs) / NAME
        self._root = root
        self.partial = self.top / "partial"
        self.staged = self.top / "staged"
        self.recorded = self.top / "recorded"
        self.uploads = self.top / "uploads"
        self.scratch = self.top / "scratch"
        self._lock: int | None = None

    @property
    def locked(self) -> bool:
        """Whether this process is the one that changes the library."""
        return self._lock is not None

    def open(self) -> None:
        """Creates what is missing, and takes the lock until this process ends.

        Raises OSError, and `PronkError` when another process has the lock.
        """
        if not self.locked:
            make_directory(self._root)
        for directory in (
            self.top,
            self.partial,
            self.staged,
            self.recorded,
            self.uploads,
            self.scratch,
        ):
            require_directory(directory)
        if not self.locked:
            self._lock = self._take_lock()

    def close(self) -> None:
        """Gives the lock back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def new_scratch(self) -> Path:
        """An empty directory. Raises OSError."""
        path = self.scratch / new_name()
        path.mkdir(mode=DIRECTORY_MODE)
        return path

    def between(self) -> Path:
        """A path that nothing has yet."""
        return self.scratch / new_name()

    def _take_lock(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.top / "lock", flags, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise PronkError(
                Code.UNAVAILABLE,
                "another Pronk server changes this model library; make the change there, stop that "
                "server, or set PRONK_MODELS to another directory",
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(descriptor)
                raise
            _log.warning("this file system has no locks: only one server may change the library")
        return descriptor


def _same_disk(root: Path, blobs: Path) -> bool:
    try:
        return root.stat().st_dev == blobs.stat().st_dev
    except OSError:
        return True  # not there yet, and made on the same disk then
