"""What this process may take of its host: memory and processors, within what a container may have.

Limits count where they are those of control groups of version 2.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path, PurePosixPath

import psutil

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_CPUS = Path("/sys/devices/system/cpu")


def free_memory(cgroups: Path = _CGROUPS, own: Path = _OWN) -> int:
    """Bytes that can be taken without swapping, and without the kernel ending somebody for it."""
    rooms = (_room(group) for group in _groups(cgroups, own))
    return min([psutil.virtual_memory().available, *(room for room in rooms if room is not None)])


def total_memory(cgroups: Path = _CGROUPS, own: Path = _OWN) -> int:
    """Bytes that there would be if nobody had taken any."""
    limits = (_limit(group) for group in _groups(cgroups, own))
    return min([psutil.virtual_memory().total, *(limit for limit in limits if limit is not None)])


def own_memory() -> int:
    """Bytes of memory that are this process's alone, as far as the system tells: files that it has
    mapped are everybody's.
    """
    info = psutil.Process().memory_info()
    return max(0, info.rss - int(getattr(info, "shared", 0)))


def cores(cgroups: Path = _CGROUPS, own: Path = _OWN, cpus: Path = _CPUS) -> int:
    """Physical cores that this process may compute on: at least one.

    Two hardware threads of one core compute no faster than one does. A quota of processor time
    counts like that many cores, rounded down: a thread that it stops holds up all others.
    """
    allowed = _allowed_cores(cpus)
    quotas = (_quota(group) for group in _groups(cgroups, own))
    return max(1, int(min([allowed, *(quota for quota in quotas if quota is not None)])))


def _allowed_cores(cpus: Path) -> int:
    physical = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    if not hasattr(os, "sched_getaffinity"):
        return physical
    allowed = os.sched_getaffinity(0)
    siblings: set[str] = set()
    for cpu in allowed:
        topology = cpus / f"cpu{cpu}" / "topology"
        try:
            siblings.add((topology / "thread_siblings_list").read_text().strip())
        except OSError:  # the kernel does not say which threads share a core
            return min(physical, len(allowed))
    return len(siblings)


def _groups(cgroups: Path, own: Path) -> list[Path]:
    """This process's control group, and each one around it."""
    try:
        lines = own.read_text().splitlines()
    except OSError:  # no Linux
        return []
    paths = [PurePosixPath(line[3:].lstrip("/")) for line in lines if line.startswith("0::/")]
    return [cgroups / place for path in paths for place in (path, *path.parents)]


def _limit(group: Path) -> int | None:
    """None where there is none, or no limit ("max")."""
    with contextlib.suppress(OSError, ValueError):
        return int((group / "memory.max").read_text())
    return None


def _quota(group: Path) -> float | None:
    """Processors' worth of time."""
    with contextlib.suppress(OSError, ValueError):
        time, period = (group / "cpu.max").read_text().split()
        if int(period) > 0:
            return int(time) / int(period)
    return None


def _room(group: Path) -> int | None:
    limit = _limit(group)
    if limit is None:
        return None
    try:
        used = int((group / "memory.current").read_text())
        pairs = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        statistics = {name: int(value) for name, value in pairs}
    except (OSError, ValueError):
        return None
    # Pages of files are given up where the room is needed.
    files = statistics.get("active_file", 0) + statistics.get("inactive_file", 0)
    return max(0, limit - used + files)


def usable_threads(asked: int) -> int:
    """How many threads to compute with where so many are asked for: at least one, and never more
    than the host has processors, because those would only wait for each other.
    """
    return max(1, min(asked, os.cpu_count() or 1))
