"""A process that pulls one model each time it is told to, in a child that may be killed.

usage: python -m support.pull_often LIBRARY NAME CONNECTIONS

Each line on standard input starts a pull. Prints lines of JSON: `{"pid": …}` of the child, what the
child reports, and `{"ended": …}` with its status. Forking costs less than a new interpreter, and
hundreds of them are to be killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from pathlib import Path

import uvloop

from .pull_once import pull


def child(library: Path, name: str, connections: int) -> None:
    """Never returns."""
    status = 1
    try:
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        asyncio.run(pull(library, name, connections))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def main() -> None:
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
        print(json.dumps({"pid": pid}), flush=True)
        status = os.waitpid(pid, 0)[1]
        # A line that the child was killed in ends here.
        print("\n" + json.dumps({"ended": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main()
