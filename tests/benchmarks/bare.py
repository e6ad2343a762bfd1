"""The shortest handler that streams a line for each token: what the relay is measured by.

usage: python -m benchmarks.bare PORT

It has nothing to validate, nobody to ask and no text to make: the line is the same each time.
"""

from __future__ import annotations

import socket
import subprocess
import sys

import uvloop
from aiohttp import web

LINE = (
    b'{"model":"echo","created_at":"2026-01-01T00:00:00.000000000Z","response":"word",'
    b'"done":false}\n'
)


class Bare:
    """The bare side, seen from the benchmark."""

    def __init__(self) -> None:
        """Returns when it listens."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bare"], stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        assert self._process.stdout
        self.port = int(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()


async def _generate(request: web.Request) -> web.StreamResponse:
    count = (await request.json())["options"]["num_predict"]
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    for _ in range(count):
        await response.write(LINE)
    await response.write_eof()
    return response


def main() -> None:
    """Serves until it is ended."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(listener.getsockname()[1], flush=True)
    app = web.Application()
    app.add_routes([web.post("/api/generate", _generate)])
    uvloop.install()
    web.run_app(app, sock=listener, access_log=None, print=None)


if __name__ == "__main__":
    main()
