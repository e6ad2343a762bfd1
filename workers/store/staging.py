"""Blobs on their way into the library: whole and verified, and named by no manifest yet."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from pathlib import Path

from .disk import FILE_MODE, is_regular, put_beside, sync_directory, write_new
from .files import Remembered
from .own_files import OwnFiles, blob_name
from .records import Mark, Records, mark_of
from .references import References

_REMEMBERED = 16_384


class Staging:
    """Finds, takes in and installs blobs. Blocking; methods raise OSError.

    `find` and `sound` may be called by any thread, everything else by one at a time.
    """

    def __init__(self, own: OwnFiles, blobs: Path, references: References, umask: int) -> None:
        self._own = own
        self._blobs = blobs
        self._references = references
        self._mode = FILE_MODE & ~umask
        self.records = Records(own.recorded)
        self._verified: Remembered[bool] = Remembered(_REMEMBERED)
        self._reading = threading.Lock()
        """One file is read at a time: two would only make the disk's head go to and fro."""

    def installed(self, digest: str) -> Path:
        """Where a blob lies when a manifest names it."""
        return self._blobs / blob_name(digest)

    def staged(self, digest: str) -> Path:
        """Where it lies before that."""
        return self._own.staged / blob_name(digest)

    def partial(self, digest: str) -> Path:
        """Where its download grows."""
        return self._own.partial / blob_name(digest)

    def journal(self, digest: str) -> Path:
        """What is known about its download."""
        path = self.partial(digest)
        return path.with_name(f"{path.name}.json")

    def find(self, digest: str) -> Path | None:
        """The whole blob. May read all of it where nobody has vouched for it yet."""
        for path in (self.installed(digest), self.staged(digest)):
            if self.sound(path, digest):
                return path
        return None

    def sound(self, path: Path, digest: str) -> bool:
        """Whether a file is what its name says.

        Believed are a file that looks as it did when it was verified, and one of `blobs` that has
        the size that a manifest gives it: the library is served on that word. Ollama gives blobs
        their names before it verifies them, so all others are read.
        """
        status = is_regular(path)
        if status is None:
            return False
        mark = mark_of(status)
        recorded = self.records.get(digest)
        if recorded == mark:
            return True
        stamp = (mark.mtime_ns, 0, mark.size, mark.inode)
        known = self._verified.get(digest, stamp)
        if known is not None:
            return known
        if recorded is None and path.parent == self._blobs:
            sizes = self._references.scan().sizes.get(digest, set[int]())
            if mark.size in sizes:
                return True
        with self._reading:
            known = self._verified.get(digest, stamp)
            if known is None:
                try:
                    known = _has_digest(path, mark, digest)
                except PermissionError:
                    known = False  # it would be of no use to a worker, either
                self._verified.keep(digest, stamp, known)
        return known

    def settle(self, path: Path) -> Mark:
        """Brings a file to the disk, with the permissions that blobs have. Any thread."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(path))
            os.fchmod(descriptor, self._mode)
            os.fsync(descriptor)
            return mark_of(os.fstat(descriptor))
        finally:
            os.close(descriptor)

    def adopt(self, path: Path, digest: str, mark: Mark) -> Path:
        """Stages a file that was verified, and settled with this `mark`; `path` is gone then."""
        staged, installed = self.staged(digest), self.installed(digest)
        if self._is_ours(installed, digest):
            # The file that is there already gets the second name: then one record tells both.
            path.unlink()
            return staged if _second_name(installed, staged) else installed
        self.records.put(digest, mark)
        path.replace(staged)
        sync_directory(self._own.staged)
        if path == self.partial(digest):
            self.journal(digest).unlink(missing_ok=True)
        return staged

    def keep(self, content: bytes) -> str:
        """Stages a small blob; returns its digest."""
        digest = hashlib.sha256(content).hexdigest()
        if not self.sound(self.staged(digest), digest):
            path = self._own.between()
            write_new(path, content)
            self.adopt(path, digest, self.settle(path))
        return digest

    def install(self, digest: str) -> bool:
        """Has the blob lie in `blobs`; False where there is none to be had."""
        installed, staged = self.installed(digest), self.staged(digest)
        if self.sound(installed, digest):
            return True
        if not self.sound(staged, digest):
            return False
        if not put_beside(staged, installed, self._own.between()):
            return True  # it was moved, and is the same file
        status = is_regular(installed)
        if status and mark_of(status) != self.records.get(digest):
            self.records.put(digest, mark_of(status))  # it was copied
        return True

    def unstage(self, digest: str) -> None:
        """Removes the first name of a blob that lies in `blobs` now."""
        installed = is_regular(self.installed(digest))
        if installed is None:
            return
        self.staged(digest).unlink(missing_ok=True)
        recorded = self.records.get(digest)
        if recorded and recorded.inode != installed.st_ino:
            self.records.drop(digest)  # Ollama had put the same blob there

    def discard(self, digest: str) -> None:
        """Removes a staged blob that does not lie in `blobs`."""
        if is_regular(self.installed(digest)) is None:
            self.staged(digest).unlink(missing_ok=True)
            self.records.drop(digest)

    def _is_ours(self, path: Path, digest: str) -> bool:
        status = is_regular(path)
        return status is not None and self.records.get(digest) == mark_of(status)


def _second_name(source: Path, target: Path) -> bool:
    """A second name for a file; False, and nothing done, where there are no second names."""
    if target.exists():
        return True
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        return False
    return True


def _has_digest(path: Path, mark: Mark, digest: str) -> bool:
    """Whether the file is what it is called, and stayed the same while it was read."""
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            return False
        return mark_of(os.fstat(file.fileno())) == mark
