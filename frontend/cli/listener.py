"""Supervisord's event listener: says when the server is ready, and ends one that cannot go on.

usage: python -m pronk.frontend.cli.listener URL LOGS

Of workers that join another host's scheduler the URL is the scheduler's, and there is nothing to
wait for: whether it lets them in stands in their logs.

It speaks supervisor's event protocol on its standard input and output, and answers every event
with what the `console` shall show. A process that failed to start four times in a row is the end of
the server: supervisord's FATAL says so where each try took less than a second (BACKOFF), and the
exit status where it took longer. That the server is ready is no event of supervisord's: it is found
out over HTTP, and made an event through a "process communication" on standard error, which
supervisord hands back to its listeners, this one.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import selectors
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ...protocol.process import die_with_parent
from ...protocol.role import CANNOT_START
from . import console

_POLL_SECONDS = 0.1
_HTTP_TIMEOUT = 5.0
_WARNING_SECONDS = 5.0
_TAIL = 4096
_TRIES = 4
_PLAIN_NAME = re.compile(r"[\w./:-]+")


class Listener:
    """Turns events into lines for the console."""

    def __init__(self, url: str, logs: Path) -> None:
        self._url = url
        self._logs = logs
        self._next_warning: dict[str, float] = {}
        self._failed_starts: dict[str, int] = {}
        """How often in a row a process could not start."""
        self._stopping = False
        self.starting = False
        """Whether the ready line is still owed."""

    def answer(self, headers: dict[str, str], payload: str) -> str:
        """What to tell the console about one event."""
        match headers["eventname"]:
            case "SUPERVISOR_STATE_CHANGE_RUNNING":
                self.starting = True
            case "SUPERVISOR_STATE_CHANGE_STOPPING":
                self._stopping = True
                self.starting = False
            case "PROCESS_COMMUNICATION_STDERR":
                return f"{console.READY} {payload.partition(chr(10))[2]}"
            case "PROCESS_STATE_FATAL" if not self._stopping:
                return self._failure(_fields(payload)["processname"])
            case "PROCESS_STATE_BACKOFF" if not self._stopping:
                return self._failed_start(_fields(payload)["processname"])
            case "PROCESS_STATE_EXITED" if not self._stopping:
                return self._exit(_fields(payload))
            case _:
                pass
        return console.NOTHING

    def look(self) -> str | None:
        """The ready line, once the server answers everything that a client asks first."""
        if self._url.startswith("tcp://"):
            self.starting = False
            return f"Pronk's workers are ready to join {self._url}; their logs are in {self._logs}"
        if any(fetch(self._url, path) is None for path in ("/api/version", "/api/ps")):
            return None
        tags = fetch(self._url, "/api/tags")
        if tags is None:
            return None
        self.starting = False
        return f"Pronk is ready at {self._url} - try: {self._example(tags)}"

    def _example(self, tags: Any) -> str:
        names = [model["name"].removesuffix(":latest") for model in tags["models"]]
        plain = [name for name in names if _PLAIN_NAME.fullmatch(name)]
        if not plain:
            return f"curl {self._url}/api/tags"
        body = {
            "model": "demo" if "demo" in plain else plain[0],
            "messages": [{"role": "user", "content": "Why is the sky blue?"}],
        }
        return f"curl {self._url}/api/chat -d '{json.dumps(body, separators=(',', ':'))}'"

    def _exit(self, fields: dict[str, str]) -> str:
        if fields["status"] == str(CANNOT_START):
            return self._failed_start(fields["processname"])
        self._failed_starts.pop(fields["processname"], None)
        return self._death(fields)

    def _failed_start(self, process: str) -> str:
        tries = self._failed_starts[process] = self._failed_starts.get(process, 0) + 1
        return self._failure(process) if tries >= _TRIES else console.NOTHING

    def _failure(self, process: str) -> str:
        self._stopping = True  # it is told once
        last = last_line(self._logs / f"{process}.log")
        said = f"; the last it said: {last}" if last else ""
        return f"{console.FAILURE} pronk: {process} cannot start, so the server ends{said}"

    def _death(self, fields: dict[str, str]) -> str:
        process, now = fields["processname"], time.monotonic()
        if fields["expected"] == "1" or now < self._next_warning.get(process, 0.0):
            return console.NOTHING
        self._next_warning[process] = now + _WARNING_SECONDS
        log = self._logs / f"{process}.log"
        return (
            f"{console.WARNING} pronk: {process} (pid {fields['pid']}) died and is started again; "
            f"its log is {log}"
        )


def fetch(url: str, path: str) -> Any:
    """What the server answers, decoded from JSON; None unless it is a success."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_HTTP_TIMEOUT)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return json.loads(response.read()) if response.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def last_line(log: Path) -> str:
    """The last line of a log that says something, in printable characters; empty without one."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    for line in reversed(lines):
        if line.strip():
            return "".join(c for c in line if c.isprintable()).strip()
    return ""


def _fields(text: str) -> dict[str, str]:
    return dict(word.split(":", 1) for word in text.split())


def _announce(line: str) -> None:
    """Makes `line` an event of supervisord's."""
    os.write(2, b"<!--XSUPERVISOR:BEGIN-->" + line.encode() + b"<!--XSUPERVISOR:END-->")


def _read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := os.read(0, size - len(data))):
            sys.exit(0)  # supervisord is gone
        data += more
    return data


def _read_event() -> tuple[dict[str, str], str]:
    line = b""
    while not line.endswith(b"\n"):
        line += _read(1)
    headers = _fields(line.decode())
    return headers, _read(int(headers["len"])).decode("utf-8", "replace")


def main() -> None:
    """Listens until supervisord ends."""
    die_with_parent()
    listener = Listener(sys.argv[1], Path(sys.argv[2]))
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    os.write(1, b"READY\n")
    while True:
        if selector.select(_POLL_SECONDS if listener.starting else None):
            answer = listener.answer(*_read_event()).encode()
            os.write(1, b"RESULT %d\n%sREADY\n" % (len(answer), answer))
        elif listener.starting and (line := listener.look()):
            _announce(line)


if __name__ == "__main__":
    main()
