"""From settings to a running supervisord, in one process."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ...protocol.errors import Code, PronkError
from ...protocol.process import SUPERVISOR_PID
from ...protocol.settings import config_file, load_settings
from ...protocol.state import StateDirectory
from ...protocol.withheld import advice
from .checks import check, free_port
from .rendering import render_for_serve


def become_supervisord(*, workers_only: bool = False) -> NoReturn:
    """Checks everything, writes supervisord's configuration, and replaces this process by it.

    Port 0 stands for any free one, which the ready line then names. Raises `PronkError`, with
    nothing started, when the server could not run, or would be one where only workers were asked
    for.
    """
    settings = load_settings()
    if workers_only and not settings.scheduler:
        raise PronkError(
            Code.INVALID_REQUEST, "which scheduler? Name it with --join, or in PRONK_SCHEDULER"
        )
    if config := config_file():
        # Wherever a process of the server stands when it reads it.
        os.environ["PRONK_CONFIG"] = str(config)
    address, port = settings.address
    if port == 0:
        kept = free_port(address)
        settings = load_settings(PRONK_HOST=_host(address, kept.getsockname()[1]))
        if sys.platform == "linux":
            kept.set_inheritable(True)  # supervisord has it open until its end, and listens later
        else:
            kept.close()  # elsewhere, SO_REUSEADDR lets nobody bind what is bound already
        os.environ["PRONK_HOST"] = settings.host
    os.set_inheritable(check(settings), True)  # supervisord's, until its end
    if warning := advice(settings):
        print(f"pronk: {warning}", file=sys.stderr, flush=True)
    programs = StateDirectory(settings.state).supervisor_config
    draft = programs.with_suffix(".new")
    draft.write_text(render_for_serve(settings))
    draft.replace(programs)
    os.environ[SUPERVISOR_PID] = str(os.getpid())
    command = ["-P", "-m", "pronk.frontend.cli.supervisord", "--configuration", str(programs)]
    os.execv(sys.executable, [sys.executable, *command])


def _host(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
