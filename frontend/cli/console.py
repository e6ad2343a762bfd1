"""The console of `pronk serve`: what supervisord, otherwise silent, lets a person see.

The listener cannot write there itself: supervisord gives its children pipes and closes all else,
and what its own standard output is (a terminal, a file, a socket of systemd) cannot be opened by
name. So the listener answers an event with a line, and supervisord, in whose process this module
is, hands the answer to `handle`.
"""

from __future__ import annotations

import os
import select
import signal

READY = "ready"
WARNING = "warning"
FAILURE = "failure"
NOTHING = "nothing"

_STREAMS = {READY: 1, WARNING: 2, FAILURE: 2}

_failed = False


def handle(event: object, response: bytes) -> None:
    """Supervisor's `result_handler`: shows the line, and ends a server that cannot go on."""
    global _failed
    kind, _, line = response.decode("utf-8", "replace").partition(" ")
    if kind in _STREAMS:
        say(_STREAMS[kind], line)
    if kind == FAILURE:
        _failed = True
        os.kill(os.getpid(), signal.SIGTERM)


def exit_status() -> int:
    """What supervisord's process exits with: 0 when it was asked to end, 1 when it had to."""
    return int(_failed)


def say(descriptor: int, line: str) -> None:
    """Writes one line, or leaves it when nobody takes it: a stopped terminal stops no server."""
    try:
        if select.select([], [descriptor], [], 0)[1]:
            os.write(descriptor, line.encode() + b"\n")
    except OSError:
        pass
