"""One question to the built-in model, with a server that lives for nothing else."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ...protocol.errors import Code, PronkError
from ...protocol.process import die_with_parent

_READY_SECONDS = 120.0
_STOP_SECONDS = 10.0


def run(prompt: str) -> None:
    """Starts a server, prints its answer to `prompt` as it comes, and ends the server.

    Raises `PronkError` with the reason when there is no answer. However this process ends, the
    server ends with it.
    """
    import httpx
    import ollama

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with _server() as url:
            _tell(f">>> {prompt}\n")
            client = ollama.Client(host=url, trust_env=False)
            question = [{"role": "user", "content": prompt}]
            for part in client.chat(model="demo", messages=question, stream=True):
                print(part.message.content or "", end="", flush=True)
            print()
    except (ollama.ResponseError, httpx.HTTPError, ConnectionError) as error:
        raise PronkError(Code.UNAVAILABLE, f"the demo model did not answer: {error}") from None
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _tell(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


@contextmanager
def _server() -> Iterator[str]:
    # Not TMPDIR, whose path may be too long for the sockets.
    with tempfile.TemporaryDirectory(prefix="pronk-demo-", dir="/tmp") as directory:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PRONK_", "OLLAMA_"))
        }
        environment |= {
            "PRONK_HOST": "127.0.0.1:0",
            "PRONK_STATE": f"{directory}/state",
            "PRONK_MODELS": f"{directory}/models",
            "PRONK_WORKERS": "1",
            "PRONK_FRONTENDS": "1",
        }
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "pronk.frontend.cli", "serve"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            preexec_fn=die_with_parent,
        )
        try:
            yield _url_when_ready(server)
        finally:
            _stop(server)


def _url_when_ready(server: subprocess.Popen[bytes]) -> str:
    assert server.stdout is not None
    os.set_blocking(server.stdout.fileno(), False)
    _tell("Starting the server ")
    said, deadline = b"", time.monotonic() + _READY_SECONDS
    while b"\n" not in said:
        if server.poll() is not None:
            _tell("\n")
            raise PronkError(Code.UNAVAILABLE, "the server did not start, for the reason above")
        if time.monotonic() > deadline:
            _tell("\n")
            raise PronkError(
                Code.UNAVAILABLE, f"the server was not ready after {_READY_SECONDS:.0f} s"
            )
        time.sleep(0.25)
        _tell(".")
        said += server.stdout.read() or b""
    _tell(" ready.\n")
    return re.findall(r"http://[^\s/]+", said.decode())[0]


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()  # its processes die with it
        server.wait()
