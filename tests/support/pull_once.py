"""A process that pulls one model, as the store process does, and ends.

usage: python -m support.pull_once LIBRARY NAME CONNECTIONS

Prints a line of JSON when it begins, with the time, and for each thing that it reports.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import uvloop

from pronk.protocol.names import parse_name
from pronk.protocol.settings import load_settings
from pronk.workers.store.pulling.pull import Puller
from pronk.workers.store.registry.client import Registry
from pronk.workers.store.writing import Writer


def report(
    status: str, digest: str = "", total: int | None = None, completed: int | None = None
) -> None:
    line = {"status": status, "digest": digest, "total": total, "completed": completed}
    print(json.dumps({**line, "at": time.monotonic()}), flush=True)


async def pull(library: Path, name: str, connections: int) -> None:
    writer = Writer(library)
    writer.tidy()
    registry = Registry(load_settings())
    puller = Puller(writer, registry, connections=connections)
    report("begun")
    await puller.pull(parse_name(name), True, report)
    await registry.close()


def main() -> None:
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(pull(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))


if __name__ == "__main__":
    main()
