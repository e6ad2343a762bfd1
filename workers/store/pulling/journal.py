"""The journal of an unfinished file: which of its bytes have arrived.

    <crc32 of the rest> {"journal": 1, "blob": <digest>, "size": <bytes>, "boot": <id>}
    <crc32 of the rest> {"there": [[start, end], …]}
    <crc32 of the rest> {"durable": [[start, end], …]}

One line each, in the order in which it happened; `there` adds to the lines before it, `durable`
stands for itself. Two accidents are told apart:

- The process was killed. Whatever was written before is in the system's memory or on the disk: all
  of `there` counts.
- The host went down. What the system had in its memory is gone, however old its line: the last
  `durable` counts, which was written when the disk had those bytes, and nothing else. The id of the
  host's boot says which of the two it was.

A line is written after its bytes were, so that none claims what is not there. Reading ends at the
first line that is not whole.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from ..disk import FILE_MODE, is_regular, sync_directory
from ..files import Damaged, read_small
from .ranges import Ranges

_VERSION = 1
_LONGEST = 1024 * 1024
"""Bytes at which a journal is written anew, with neighbouring ranges as one."""
_LARGEST = 16 * _LONGEST
"""Bytes of a file that can be a journal."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """What a journal says."""

    there: Ranges = field(default_factory=Ranges)
    """Bytes that are in the file now."""
    durable: Ranges = field(default_factory=Ranges)
    """Those of them that are there after a power cut, too."""


def boot_id() -> str:
    """Says whether the host was started again since; empty where the system does not tell, and what
    is in no file's durable part counts as lost.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def read_journal(path: Path, digest: str, size: int, boot: str) -> Arrived:
    """What has arrived of the blob, as far as its file has so many bytes still.

    Nothing where there is no journal, or where it is one of something else.
    """
    lines = _lines(path)
    match next(lines, None):
        case {"journal": 1, "blob": blob, "size": total, "boot": booted} if (
            blob == digest and total == size
        ):
            pass
        case _:
            return Arrived()
    there, durable = Ranges(), Ranges()
    for line in lines:
        match line:
            case {"there": ranges} if _valid(ranges, size):
                for start, end in ranges:
                    there.add(start, end)
            case {"durable": ranges} if _valid(ranges, size):
                durable = Ranges(ranges)
            case _:
                break
    return Arrived(there if boot and booted == boot else durable, durable)


class Journal:
    """Writes the journal of one unfinished file. Not for several threads at once."""

    def __init__(self, path: Path, digest: str, size: int, boot: str) -> None:
        self._path = path
        self._head = {"journal": _VERSION, "blob": digest, "size": size, "boot": boot}
        self._file = -1
        self._length = 0
        self.arrived = Arrived()

    def begin(self, arrived: Arrived) -> None:
        """Begins anew, with what is there. Either the old journal is found later or the new one."""
        self.arrived = arrived
        new = self._path.with_name(self._path.name + ".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(new, flags, FILE_MODE)
        try:
            there, durable = list(arrived.there), list(arrived.durable)
            content = _line(self._head) + _line({"there": there}) + _line({"durable": durable})
            write_all(file, [content], 0)
            os.fsync(file)
            new.rename(self._path)
            sync_directory(self._path.parent)
        except BaseException:
            os.close(file)
            with contextlib.suppress(OSError):
                new.unlink()
            raise
        self.close()
        self._file, self._length = file, len(content)

    def note(self, start: int, end: int) -> None:
        """These bytes were written."""
        self.arrived.there.add(start, end)
        self._append({"there": [(start, end)]})

    def settle(self, ranges: Iterable[tuple[int, int]]) -> int:
        """These bytes are on the disk. Returns the journal's file, a number of its own to be synced
        and closed: then the journal says so on the disk, too.
        """
        self.arrived = Arrived(self.arrived.there, Ranges(ranges))
        self._append({"durable": list(self.arrived.durable)})
        return os.dup(self._file)

    def close(self) -> None:
        """Writes no more. The journal stays."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, entry: dict[str, Any]) -> None:
        if self._length >= _LONGEST:
            self.begin(self.arrived)
            return
        line = _line(entry)
        # A line that a full disk cut is overwritten by the next one: `_length` counts whole lines.
        write_all(self._file, [line], self._length)
        self._length += len(line)


def write_all(file: int, blocks: list[bytes], offset: int) -> None:
    """Writes all of it at `offset`. Raises OSError."""
    left = sum(map(len, blocks))
    written = os.pwritev(file, blocks, offset)
    if written == left:
        return
    rest = memoryview(b"".join(blocks))[written:]  # the disk is full, or nearly
    while rest:
        offset += written
        written = os.pwrite(file, rest, offset)
        rest = rest[written:]


def _line(entry: dict[str, Any]) -> bytes:
    text = orjson.dumps(entry)
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _lines(path: Path) -> Iterator[Any]:
    try:
        content = read_small(path, _LARGEST, "the journal") if is_regular(path) else b""
    except Damaged:
        return
    for line in content.split(b"\n")[:-1]:
        crc, _, text = line.partition(b" ")
        if crc != b"%08x" % zlib.crc32(text):
            return
        try:
            yield orjson.loads(text)
        except ValueError:
            return


def _valid(ranges: Any, size: int) -> bool:
    return isinstance(ranges, list) and all(
        isinstance(pair, list)
        and len(pair) == 2
        and all(isinstance(number, int) for number in pair)
        and 0 <= pair[0] < pair[1] <= size
        for pair in ranges
    )
