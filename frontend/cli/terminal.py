"""What commands write: safe on every terminal, and ended by the right exit status."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from ...protocol.errors import Code, PronkError

INTERRUPTED = 130
"""The exit status of a command that Ctrl-C ended."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Text without characters that command a terminal: models and servers are not trusted to move
    the cursor, set a title, or answer in the person's place. Lines and tabs stay.
    """
    return _CONTROLS.sub("", text)


def valid(text: str) -> str:
    """An argument as text that can be sent: bytes that were no text become U+FFFD."""
    return os.fsencode(text).decode("utf-8", "replace")


def is_terminal(stream: IO[str] | None) -> bool:
    """Whether a person sits at it. One that was closed is none."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def is_capable(stream: IO[str]) -> bool:
    """Whether it is a terminal on which something can be written over."""
    return is_terminal(stream) and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def say(text: str = "", *, end: str = "\n") -> None:
    """Writes text of the server's or a model's to standard output, at once."""
    sys.stdout.write(for_stream(text, sys.stdout) + end)
    sys.stdout.flush()


def tell(text: str, *, end: str = "\n") -> None:
    """Writes to standard error, at once: what is about the work and not its result."""
    sys.stderr.write(for_stream(text, sys.stderr) + end)
    sys.stderr.flush()


def for_stream(text: str, stream: IO[str]) -> str:
    """Text as it is for a file or a pipe, and without commands for a terminal."""
    return printable(text) if is_terminal(stream) else text


@contextmanager
def reporting(when_interrupted: str = "") -> Iterator[None]:
    """What a command does: a failure becomes one line on standard error and the exit status 1,
    Ctrl-C becomes `INTERRUPTED`, and a reader that has had enough (`| head`) ends it silently.
    """
    import typer

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        try:
            yield
            sys.stdout.flush()
        except KeyboardInterrupt:
            if when_interrupted:
                tell(f"\n{when_interrupted}")
            raise typer.Exit(INTERRUPTED) from None
        except PronkError as error:
            tell(f"Error: {' '.join(error.message.splitlines())}")
            raise typer.Exit(1) from None
    except BrokenPipeError:
        _leave_pipe()
        raise typer.Exit(1) from None
    except OSError as error:  # a full disk behind `>`
        raise typer.Exit(_cannot_write(error)) from None


def read_input(most: int) -> str:
    """What is piped into the command. Raises `PronkError` when that is more than `most` bytes."""
    if sys.stdin is None:  # closed by whoever started the command
        return ""
    data = sys.stdin.buffer.read(most + 1)
    if len(data) > most:
        raise PronkError(
            Code.TOO_LARGE, f"standard input has more than {most // 2**20} MiB; send less of it"
        )
    return data.decode("utf-8", "replace")


def _leave_pipe() -> None:
    """Whatever Python still wants to flush when it exits goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (BrokenPipeError, ValueError):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _cannot_write(error: OSError) -> int:
    try:
        tell(f"Error: {error.strerror or error}")
    except OSError:
        _leave_pipe()
    return 1
