"""Lines from a person at the keyboard, with editing and a history that outlives the session."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections import deque
from pathlib import Path

from ..terminal import is_terminal, printable, tell

MAX_ENTRIES = 1000
"""Lines of history that are kept."""

_MAX_BYTES = 2**20
"""Beyond it the file is written anew with its last lines."""

_LONGEST_ENTRY = 10_000


class Reader:
    """The keyboard. The history is a comfort: where it cannot be kept, nothing is said."""

    def __init__(self, history: Path | None = None) -> None:
        self._file = history
        self.remembers = True
        """Whether what is read now goes into the history."""
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        try:
            import readline

            self._readline = readline
        except ImportError:  # a Python that was built without it
            self._readline = None
        if self._readline:
            self._readline.set_auto_history(False)
            self._readline.clear_history()
            for line in self._kept():
                self._readline.add_history(line)

    def read(self, prompt: str) -> str:
        """The next line. Raises EOFError at the end, and KeyboardInterrupt."""
        if is_terminal(sys.stdout):
            line = input(prompt)
        else:
            tell(prompt, end="")
            line = input()
        self._remember(line)
        return line

    def _remember(self, line: str) -> None:
        if not self.remembers or not line.strip() or len(line) > _LONGEST_ENTRY:
            return
        entry = _entry(line)
        if self._readline:
            self._readline.add_history(entry)
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _private(self._file, os.O_APPEND) as file:
                file.write(f"{entry}\n")

    def _kept(self) -> list[str]:
        if self._file is None:
            return []
        try:
            if not self._file.is_file():
                return []
            with self._file.open(encoding="utf-8", errors="replace") as file:
                lines = [_entry(line.rstrip("\n")) for line in deque(file, MAX_ENTRIES)]
            if self._file.stat().st_size > _MAX_BYTES:
                self._shorten(lines)
        except OSError:
            return []
        return lines

    def _shorten(self, lines: list[str]) -> None:
        fresh = self._file.with_name(f"{self._file.name}.{os.getpid()}") if self._file else None
        if fresh and self._file:
            with _private(fresh, os.O_TRUNC) as file:
                file.writelines(f"{line}\n" for line in lines)
            fresh.replace(self._file)


def default_history() -> Path | None:
    """Where the history is kept, for a user who has a home."""
    try:
        return Path.home() / ".pronk" / "history"
    except RuntimeError:
        return None


def _entry(line: str) -> str:
    """A line as the history can hold it."""
    return printable(line.replace("\n", " "))


def _private(path: Path, flags: int) -> io.TextIOWrapper:
    """A file for nobody else: it holds what people have asked."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "w", encoding="utf-8", errors="replace")
