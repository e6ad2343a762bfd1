"""The commands about models as tests run them: within this process, or in one of their own."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from typer.testing import CliRunner, Result

from pronk.frontend.cli.app import app
from support.server import PATIENCE

Pronk = Callable[..., Result]
"""Runs a command: its arguments, `stdin`, and the exit `status` that it has to have."""


def pronk(*arguments: str, stdin: str | bytes = "", status: int = 0) -> Result:
    """Runs a command within this process."""
    result = CliRunner().invoke(app, arguments, input=stdin)
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    return result


def completed(
    *arguments: str, env: dict[str, str], stdin: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command in a process of its own, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "pronk.frontend.cli", *arguments],
        env=env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=cwd,
    )


def command(*arguments: str, **options) -> subprocess.Popen[bytes]:
    """A command that runs in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "pronk.frontend.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        **{"stdout": subprocess.PIPE} | options,
    )


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The address of a program that answers everything with the same bytes."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(ConnectionError):
                connection.recv(65536)
                connection.sendall(answer)
                # What of the request is not read yet would have the answer cut off by the end.
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)


def error(result: Result) -> str:
    """The one line on standard error."""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert result.stdout == ""
    return line.removeprefix("Error: ")
