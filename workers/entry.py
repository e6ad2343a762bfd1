"""How a worker's process begins, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from typing import NoReturn

import uvloop
import zmq

from ..protocol.errors import Code, PronkError
from ..protocol.logs import configure_logging
from ..protocol.state import StateDirectory
from ..protocol.withheld import load_open_settings
from .crashes import CrashRecord
from .home import Home
from .process import Worker

_log = logging.getLogger(__name__)

_SWITCH_SECONDS = 0.0005
"""How long one thread may hold Python's lock while another waits for it: the engine's thread takes
it back after every step, beside an event loop that is making the texts of the step before."""

_STACK = 64 * 1024 * 1024
"""Address space of a thread's stack: llama.cpp's tokenizers recurse along a text."""


def main(name: str) -> int:
    """The process called `name`. Returns an exit status, or ends the process itself."""
    try:
        if not name.replace("-", "").replace("_", "").isalnum() or len(name) > 64:
            raise PronkError(Code.INVALID_REQUEST, f"--name {name!r}: use letters, digits, - and _")
        settings = load_open_settings()
        state = StateDirectory(settings.state)
        state.prepare()
        home = Home.of(settings, state)
    except PronkError as error:
        print(error.message, file=sys.stderr)
        return 1
    configure_logging("worker", settings.log_level)
    # ggml's abort would start a debugger first, to print a trace.
    os.environ["GGML_NO_BACKTRACE"] = "1"
    record = CrashRecord(state.crash_record(name))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda *_: _end(record, 0))
    if delay := record.begin():
        _log.warning("%s crashed again and again; waiting %.1f s before work", name, delay)
        time.sleep(delay)

    sys.setswitchinterval(_SWITCH_SECONDS)
    threading.stack_size(_STACK)

    async def live() -> int:
        return await Worker(settings, home, name).run()

    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    status = runner.run(live())
    zmq.Context.instance().term()  # waits for the last words, at most as long as they linger
    return _end(record, status)


def _end(record: CrashRecord, status: int) -> NoReturn:
    """Ends the process at once: a thread in llama.cpp would hold up the interpreter's own exit."""
    if status == 0:
        record.clear()
    logging.shutdown()
    os._exit(status)
