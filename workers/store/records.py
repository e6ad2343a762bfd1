"""Which blobs Pronk has put into the library, and how each looked when it was verified."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple, cast

import orjson

from .disk import new_name, write_new

_MAX_RECORD = 4096


class Mark(NamedTuple):
    """What stays the same about a file while its content does, however many names it gets."""

    mtime_ns: int
    size: int
    inode: int


def mark_of(status: os.stat_result) -> Mark:
    """The mark of the file that `status` is of."""
    return Mark(status.st_mtime_ns, status.st_size, status.st_ino)


class Records:
    """One small file for each blob, named after its digest. Methods raise OSError."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def digests(self) -> list[str]:
        """Every blob that is recorded."""
        try:
            return [entry.name for entry in os.scandir(self._directory) if len(entry.name) == 64]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def get(self, digest: str) -> Mark | None:
        """How the blob looked when it was verified; None if it is not recorded."""
        path = self._directory / digest
        try:
            with path.open("rb", buffering=0) as file:
                value: Any = orjson.loads(file.read(_MAX_RECORD))
        except (OSError, ValueError):
            return None
        match cast(object, value):
            case [int(mtime_ns), int(size), int(inode)]:
                return Mark(mtime_ns, size, inode)
            case _:
                return None

    def put(self, digest: str, mark: Mark) -> None:
        """Records a blob, at one instant."""
        if self.get(digest) == mark:
            return
        between = self._directory / new_name()
        write_new(between, orjson.dumps(list(mark)))
        between.replace(self._directory / digest)

    def drop(self, digest: str) -> None:
        """Forgets a blob."""
        (self._directory / digest).unlink(missing_ok=True)
