"""A terminal with a person at it: a command in a pty of its own, as a shell would start it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from support.server import PATIENCE

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")

CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """What a command shows, and what is typed."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self.raw = ""
        self._seen = 0

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def interrupt_until(self, wanted: str) -> str:
        """Presses Ctrl-C at a prompt, and reads until `wanted`. Python's readline notices a signal
        only while it waits for a key: one that came just before, only at the next signal.
        """
        return self._read_until(wanted, every=lambda: self.type(CTRL_C))

    def read_until(self, wanted: str) -> str:
        """What was shown since the last call, up to and with `wanted`; escapes are left out."""
        return self._read_until(wanted, every=lambda: None)

    def _read_until(self, wanted: str, every: Callable[[], None]) -> str:
        """Calls `every` first, and again after each second in which nothing was shown."""
        deadline = time.monotonic() + PATIENCE
        every()
        while (place := self.shown.find(wanted, self._seen)) < 0:
            now = time.monotonic()
            if self._read(min(deadline, now + 1.0)):
                continue
            if time.monotonic() - now < 1.0 or now >= deadline:  # it has ended, or takes too long
                raise AssertionError(f"no {wanted!r} in {self.shown[self._seen :]!r}")
            every()
        begin, self._seen = self._seen, place + len(wanted)
        return self.shown[begin : self._seen]

    def wait(self) -> int:
        """Its exit status, once everything was read."""
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline):
            pass
        return self.process.wait(PATIENCE)

    @property
    def shown(self) -> str:
        return _ESCAPES.sub("", self.raw).replace("\r\n", "\n")

    def _read(self, deadline: float) -> bool:
        """Whether something came; the end of the command is the end of what comes."""
        while time.monotonic() < deadline:
            if select.select([self._descriptor], [], [], 0.1)[0]:
                try:
                    data = os.read(self._descriptor, 65536)
                except OSError:
                    return False
                self.raw += data.decode("utf-8", "replace")
                return bool(data)
        return False


@contextlib.contextmanager
def terminal(
    *arguments: str,
    home: Path,
    url: str,
    columns: int = 80,
    term: str = "xterm",
    **environment: str,
) -> Iterator[Terminal]:
    """Runs `pronk` with these arguments in a terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PRONK_", "OLLAMA_"))}
    inherited.pop("COLUMNS", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "pronk.frontend.cli", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        env=inherited | {"HOME": str(home), "PRONK_HOST": url, "TERM": term, **environment},
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(ours)
