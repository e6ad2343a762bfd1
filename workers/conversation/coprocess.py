"""Confined processes that stay, for what is asked again and again: rendering a model's template.

A conversation may make its template take gigabytes or run for ever, although others did not. Then
the process that rendered it ends, that one request gets an error, and another process takes its
place; nothing of it happens in the worker, whose streams go on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any

import orjson

from ...protocol.errors import Code, PronkError
from .confined import PATIENCE, TooMuch, command, memory_for
from .confinement import LENGTH_BYTES, encoded

_log = logging.getLogger(__name__)

MOST = 4
"""Processes for one template: while one is held up by a conversation, others take the rest."""

SECONDS = 3
"""Of computing, for an order that is not long."""

_CHARACTERS_A_SECOND = 4 * 2**20
"""Of a long order, for which there is more time."""

_BUSY = 0.05
"""Seconds that all processes have to be busy before there is another one: most orders take less
than a millisecond, and a process takes longer to start."""

_DYING = 1.0
"""Seconds that a process may take to end once it has closed its pipes."""

_BY_OTHERS = (-signal.SIGKILL, -signal.SIGTERM)
"""Ends that are no fault of the order."""


class _Killed(Exception):
    """The process was ended by somebody else."""


class _Coprocess:
    """One process. For one thread at a time."""

    def __init__(self, module: str) -> None:
        """Starts the program `module`, and waits for nothing."""
        self._process = subprocess.Popen(
            command(module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            bufsize=0,
        )
        assert self._process.stdin
        assert self._process.stdout
        self._pipes = self._process.stdin, self._process.stdout
        self._orders, self._answers = (pipe.fileno() for pipe in self._pipes)
        os.set_blocking(self._orders, False)
        os.set_blocking(self._answers, False)
        self._knows_first = False

    def ask(self, first: bytes, order: bytes, patience: float) -> bytes:
        """The answer to an order, which comes within `patience` seconds. `first` is what the
        process has to know before any order.

        Raises `TooMuch`, or `_Killed`; the process has ended then.
        """
        deadline = time.monotonic() + patience
        try:
            unknown = b"" if self._knows_first else _framed(first)
            self._send(unknown + _framed(order), deadline)
            self._knows_first = True
            length = int.from_bytes(self._receive(LENGTH_BYTES, deadline))
            return self._receive(length, deadline)
        except TimeoutError:
            self.end()
            raise TooMuch from None
        except (OSError, EOFError):
            raise self._why_ended() from None
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Ends the process, and gives back what it held."""
        self._process.kill()
        self._process.wait()
        for pipe in self._pipes:
            pipe.close()

    def _why_ended(self) -> Exception:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_DYING)
        status = self._process.returncode
        self.end()
        _log.warning("a process that writes prompts ended with status %s", status)
        return _Killed() if status in _BY_OTHERS else TooMuch()

    def _send(self, data: bytes, deadline: float) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._orders, left) :]
            except BlockingIOError:
                _wait(self._orders, select.POLLOUT, deadline)

    def _receive(self, count: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                part = os.read(self._answers, count - len(data))
            except BlockingIOError:
                _wait(self._answers, select.POLLIN, deadline)
                continue
            if not part:
                raise EOFError
            data += part
        return bytes(data)


class Coprocesses:
    """The processes of one program. For many threads."""

    def __init__(self, module: str) -> None:
        """Starts the first process, and waits for nothing."""
        self._module = module
        self._first = b""
        self._lock = threading.Lock()
        self._free: queue.LifoQueue[_Coprocess] = queue.LifoQueue()
        self._count = 0
        self._closed = False
        self._replace()

    def begin(self, first: Mapping[str, Any]) -> None:
        """Says what every process is told before its first order. Comes before any `ask`."""
        self._first = _json(first)

    @property
    def begun(self) -> bool:
        """Whether it was said what they have to know."""
        return bool(self._first)

    def ask(self, order: Mapping[str, Any], *, given: int) -> dict[str, Any]:
        """What the program answers to an order. `given` is the order's size in characters.

        Raises `TooMuch`, and `PronkError` (UNAVAILABLE) where no process has time for it.
        """
        seconds = SECONDS + given // _CHARACTERS_A_SECOND
        said = _json({"memory": memory_for(given), "seconds": seconds, "order": order})
        for _ in range(2):
            with contextlib.suppress(_Killed):
                return orjson.loads(self._ask(said))
        raise TooMuch

    def close(self) -> None:
        """Ends all processes: those that are busy when they have answered."""
        with self._lock:
            self._closed = True
        while True:
            try:
                self._free.get_nowait().end()
            except queue.Empty:
                return

    def _ask(self, said: bytes) -> bytes:
        process = self._taken()
        try:
            answer = process.ask(self._first, said, PATIENCE)
        except BaseException:
            self._replace(process)
            raise
        with self._lock:
            if not self._closed:
                self._free.put(process)
                return answer
        process.end()
        return answer

    def _taken(self) -> _Coprocess:
        with contextlib.suppress(queue.Empty):
            return self._free.get(timeout=_BUSY if self._count else 0)
        with self._lock:
            more = self._count < MOST
            self._count += more
        try:
            return _Coprocess(self._module) if more else self._free.get(timeout=PATIENCE)
        except OSError as error:
            with self._lock:
                self._count -= 1
            _log.error("no process could be started: %s", error)
        except queue.Empty:
            pass
        raise PronkError(
            Code.UNAVAILABLE,
            "the server has no process free to write the prompt; try again",
            retry_after=2.0,
        )

    def _replace(self, ended: _Coprocess | None = None) -> None:
        """Starts a process in the place of one that ended, or the first one."""
        with self._lock:
            self._count -= ended is not None
            if self._closed or self._count >= MOST:
                return
            self._count += 1
        try:
            self._free.put(_Coprocess(self._module))
        except OSError as error:  # whoever needs one tries again
            with self._lock:
                self._count -= 1
            _log.warning("no process could be started: %s", error)


def _json(value: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(value)  # twenty times as fast
    except TypeError:  # a number that is very large, or half of a character
        return encoded(value)


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(LENGTH_BYTES) + data


def _wait(pipe: int, event: int, deadline: float) -> None:
    """Returns when a pipe can be used, or has ended. Raises `TimeoutError`."""
    poll = select.poll()
    poll.register(pipe, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError
