"""What a process knows of itself, and how one process watches another that is not its child."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .messages.fleet import ProcessIdentity

_PR_SET_PDEATHSIG = 1

SUPERVISOR_PID = "PRONK_SUPERVISOR_PID"
"""Variable in which `pronk serve` tells its processes whose children they are."""


def new_incarnation() -> str:
    """A random name for one life of one process: 16 hexadecimal digits."""
    return secrets.token_hex(8)


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent dies, so that no fleet outlives its
    supervisor. Does nothing where the kernel has no such thing (macOS).
    """
    if not sys.platform.startswith("linux"):
        return
    # The parent may be gone before this line is reached: asking the kernel names another one then.
    # Taken out of the environment, because it is not true for children of this process.
    told = os.environ.pop(SUPERVISOR_PID, "")
    parent = int(told) if told.isdecimal() else os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel was told
        os.kill(os.getpid(), signal.SIGKILL)


def own_identity() -> ProcessIdentity:
    """The identity under which other processes of this host can watch this one."""
    # Not needed by processes that only end with their parent, and that are to start quickly.
    from .messages.fleet import ProcessIdentity

    return ProcessIdentity(
        pid=os.getpid(),
        start_time=_start_time(os.getpid()) or 0,
        pid_namespace=_pid_namespace(),
        host_boot_id=_host_boot_id(),
    )


def open_pidfd(process: ProcessIdentity) -> int | None:
    """A descriptor that becomes readable when `process` dies, and through which it can be killed.

    None where that is impossible: another host or pid namespace, no pidfd on this system, the
    process is gone, or its pid belongs to another process by now. Heartbeats decide alone then.
    """
    if not hasattr(os, "pidfd_open") or process.pid == 0 or not _same_host(process):
        return None
    try:
        pidfd = os.pidfd_open(process.pid)
    except (OSError, OverflowError):  # gone, or no number that a process can have
        return None
    # Only after the open does the start time prove which process the descriptor holds.
    if _start_time(process.pid) != process.start_time:
        os.close(pidfd)
        return None
    return pidfd


def _same_host(process: ProcessIdentity) -> bool:
    here = (_pid_namespace(), _host_boot_id())
    return (process.pid_namespace, process.host_boot_id) == here


def _start_time(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command name, in parentheses, may hold spaces and parentheses itself.
    return int(stat.rpartition(")")[2].split()[19])


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _host_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
