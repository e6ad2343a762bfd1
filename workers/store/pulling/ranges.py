"""Which bytes of a file: a set of ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class Ranges:
    """Bytes of a file, as ranges from a start up to and without an end. Sorted, none touch.

    Ranges that are given and hold nothing add nothing.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._size = 0
        for start, end in ranges:
            self.add(start, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def __len__(self) -> int:
        """How many separate ranges there are."""
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"Ranges({list(self)})"

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self._size

    @property
    def prefix(self) -> int:
        """Bytes from the file's first one on without a gap."""
        return self._ends[0] if self._starts and self._starts[0] == 0 else 0

    @property
    def first(self) -> tuple[int, int] | None:
        """The first range."""
        return (self._starts[0], self._ends[0]) if self._starts else None

    def add(self, start: int, end: int) -> None:
        """Puts the bytes from `start` to `end` in, whichever of them are there."""
        if start >= end:
            return
        low, high = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if low < high:
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        self._replace(low, high, [(start, end)])

    def remove(self, start: int, end: int) -> None:
        """Takes the bytes from `start` to `end` out, whichever of them are there."""
        if start >= end:
            return
        low, high = bisect_right(self._ends, start), bisect_left(self._starts, end)
        if low >= high:
            return
        left, right = (self._starts[low], start), (end, self._ends[high - 1])
        self._replace(low, high, [rest for rest in (left, right) if rest[0] < rest[1]])

    def without(self, other: Ranges) -> Ranges:
        """These bytes but for those of `other`."""
        rest = Ranges(self)
        for start, end in other:
            rest.remove(start, end)
        return rest

    def below(self, size: int) -> Ranges:
        """Those of these bytes that a file of `size` bytes has."""
        return Ranges((start, min(end, size)) for start, end in self)

    def _replace(self, low: int, high: int, ranges: list[tuple[int, int]]) -> None:
        self._size -= sum(self._ends[low:high]) - sum(self._starts[low:high])
        self._size += sum(end - start for start, end in ranges)
        self._starts[low:high] = [start for start, _ in ranges]
        self._ends[low:high] = [end for _, end in ranges]
