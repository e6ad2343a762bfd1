"""How far a long piece of work is: bars on a terminal, plain lines elsewhere, objects for programs.

All three are fed with the progress objects of the API: a `status`, and for parts that have a size
also `digest`, `total` and `completed`.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from . import wording
from .terminal import is_capable, printable, say, tell

_STEP = 10
"""Percent after which a plain line is written again."""

SUCCESS = "success"
"""The last status of every change that was completed."""


class Progress(ABC):
    """Shows what is going on while it is entered."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the showing; what was shown stays."""
        return

    def show(self, part: Mapping[str, Any]) -> None:
        """Takes one progress object. What is odd about it is shown as well as it can be."""
        status = printable(str(part.get("status") or ""))
        total, completed = _count(part.get("total")), _count(part.get("completed"))
        if total:
            self.part(str(part.get("digest") or status), status, total, min(completed, total))
        elif status:
            self.status(status)

    @abstractmethod
    def status(self, text: str) -> None:
        """What is done now."""

    @abstractmethod
    def part(self, key: str, label: str, total: int, completed: int) -> None:
        """How many bytes of one part are done."""


class Lines(Progress):
    """A line for each new status, and for every tenth of a part: for logs and dumb terminals."""

    def __init__(self, write: Callable[[str], None] = tell) -> None:
        self._write = write
        self._last = ""
        self._told: dict[str, int] = {}

    def status(self, text: str) -> None:
        """Written once, however often it comes."""
        if text != self._last:
            self._last = text
            self._write(text)

    def part(self, key: str, label: str, total: int, completed: int) -> None:
        """Written at the beginning, at each tenth, and at the end."""
        percent = 100 * completed // total
        step = percent // _STEP
        if step > self._told.get(key, -1):
            self._told[key] = step
            self._last = ""
            done = "" if completed == total else f"{wording.size(completed)}/"
            self._write(f"{label}: {percent:3}% {done}{wording.size(total)}")


class Objects(Progress):
    """Each progress object as it came, one on a line of standard output."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

    def show(self, part: Mapping[str, Any]) -> None:
        """Prints it."""
        say(json.dumps(part, ensure_ascii=False))

    def status(self, text: str) -> None:
        """Work of this command's own, in the API's form."""
        self.show({"status": text})

    def part(self, key: str, label: str, total: int, completed: int) -> None:
        """Work of this command's own, in the API's form, for every percent of it."""
        percent = 100 * completed // total
        if percent > self._told.get(key, -1):
            self._told[key] = percent
            self.show({"status": label, "total": total, "completed": completed})


def progress(as_json: bool = False) -> Progress:
    """What fits where the command was called."""
    if as_json:
        return Objects()
    if is_capable(sys.stderr):
        from .bars import Bars

        return Bars()
    return Lines()


def follow(parts: Iterable[Mapping[str, Any]], shown: Progress) -> bool:
    """Shows the progress of a change until its end; returns whether that was its success."""
    last = ""
    for part in parts:
        shown.show(part)
        last = part.get("status")
    return last == SUCCESS


def _count(value: object) -> int:
    return max(value, 0) if isinstance(value, int) else 0
