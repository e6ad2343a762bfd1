"""Frontend processes of their own, without a supervisor."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from pronk.protocol.state import StateDirectory


@contextlib.contextmanager
def process(state: StateDirectory, port: int, **arguments: Any) -> Iterator[subprocess.Popen[str]]:
    """A frontend that listens on `port`, or on the socket that `stdin` is."""
    environment = {
        **os.environ,
        "PRONK_STATE": str(state.root),
        "PRONK_HOST": f"127.0.0.1:{port}",
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "pronk.frontend", "--name", "frontend-00"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        **arguments,
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        assert child.stderr
        child.stderr.close()
