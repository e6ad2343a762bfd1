"""A blank worker's jobs other than a model: what is there, and what would a model take.

Both load llama.cpp, which takes hold of devices, so the process exits after one. A driver or a file
that makes llama.cpp abort, or hang, ends or holds up this process and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Any

from ..protocol.errors import Code, PronkError
from ..protocol.messages.devices import Discover, JobFailed, Measure
from ..protocol.messages.failure import Failure

_log = logging.getLogger(__name__)


def start_job(
    job: Discover | Measure, loop: AbstractEventLoop, answer: Callable[[Any], None]
) -> None:
    """Does the job in a thread of its own; `answer` is called once in `loop`, with what to send."""

    def work() -> None:
        message = do_job(job)
        with contextlib.suppress(RuntimeError):  # the loop was closed: the process is exiting
            loop.call_soon_threadsafe(answer, message)

    threading.Thread(target=work, name="job", daemon=True).start()


def do_job(job: Discover | Measure) -> Any:
    """The answer: `Discovered`, `Measured`, or `JobFailed` with the reason."""
    try:
        if isinstance(job, Discover):
            from .discovery import discover

            return discover(job.call)
        from .visibility import choose_devices

        choose_devices(job.load.shares)
        from .inference.dry_run import measure_load

        return measure_load(job)
    except PronkError as error:
        return JobFailed(job.call, Failure.of(error))
    except Exception:
        _log.exception("a job failed")
        return JobFailed(job.call, Failure(Code.INTERNAL, "an error in the worker; see its log"))
