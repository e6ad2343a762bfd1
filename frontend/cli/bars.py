"""Bars of progress on a terminal, drawn by rich: one for each part, with speed and time left."""

from __future__ import annotations

import sys
from typing import Self

from rich import progress as rich_progress
from rich.console import Console
from rich.text import Text

from . import wording
from .progress import Progress

_BAR_CELLS = 18
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ASCII_SPINNER = "|/-\\"


class Bars(Progress):
    """Every status and every part on a line of its own. What is worked on moves; what is done is
    written above it for good, so that any number of parts fits on any terminal.
    """

    def __init__(self) -> None:
        console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
        self._line = _Line(console.options.ascii_only)
        self._shown = rich_progress.Progress(self._line, console=console, refresh_per_second=10)
        self._parts: dict[str, rich_progress.TaskID] = {}
        self._done: set[tuple[str, int]] = set()
        self._status: rich_progress.TaskID | None = None
        self._text = ""

    def __enter__(self) -> Self:
        self._shown.start()
        return self

    def close(self) -> None:
        """Leaves the lines as they are."""
        self._end_status()
        self._shown.stop()

    def status(self, text: str) -> None:
        """A line with a spinner, until the next one comes."""
        if text != self._text:
            self._end_status()
            self._text = text
            self._status = self._shown.add_task(text, total=None, bar=False)

    def part(self, key: str, label: str, total: int, completed: int) -> None:
        """A line with a bar."""
        self._end_status()
        if (key, total) in self._done and completed == total:
            return
        task = self._parts.get(key)
        if task is None:
            # What an earlier try has brought counts as done, and not as speed.
            task = self._shown.add_task(label, total=total, completed=completed, bar=True)
            self._parts[key] = task
        self._shown.update(task, description=label, total=total, completed=completed)
        if completed == total:
            self._done.add((key, total))
            self._finish(self._parts.pop(key))

    def _end_status(self) -> None:
        if self._status is not None:
            self._shown.update(self._status, total=1, completed=1)
            self._finish(self._status)
            self._status, self._text = None, ""

    def _finish(self, task_id: rich_progress.TaskID) -> None:
        for task in self._shown.tasks:
            if task.id == task_id:
                self._shown.remove_task(task_id)
                self._shown.console.print(self._line.render(task))


class _Line(rich_progress.ProgressColumn):
    """All of a line: columns of rich's would give every line the width of the longest label."""

    max_refresh = 0.1

    def __init__(self, ascii_only: bool) -> None:
        super().__init__()
        self._spinner = _ASCII_SPINNER if ascii_only else _SPINNER
        self._ends, self._cell = ("[]", "#") if ascii_only else ("▕▏", "█")

    def render(self, task: rich_progress.Task) -> Text:
        return Text(self._text(task), no_wrap=True, overflow="ellipsis")

    def _text(self, task: rich_progress.Task) -> str:
        if not task.fields["bar"]:
            turn = int((task.elapsed or 0) * 10) % len(self._spinner)
            return task.description + ("" if task.finished else f" {self._spinner[turn]}")
        done = int(_BAR_CELLS * task.percentage / 100)
        bar = self._ends[0] + self._cell * done + " " * (_BAR_CELLS - done) + self._ends[1]
        return f"{task.description}: {int(task.percentage):3}% {bar} {_amount(task)}"


def _amount(task: rich_progress.Task) -> str:
    total = wording.size(int(task.total or 0))
    if task.finished:
        return total
    pieces = [f"{wording.size(int(task.completed))}/{total}"]
    if task.speed:
        pieces.append(f"{wording.size(int(task.speed))}/s")
    if task.time_remaining is not None:
        pieces.append(_left(int(task.time_remaining)))
    return "  ".join(pieces)


def _left(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"
