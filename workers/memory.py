"""How much memory is there to take, on this host and within what a container may have."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import psutil

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def free_memory(cgroups: Path = _CGROUPS, own: Path = _OWN) -> int:
    """Bytes that can be taken without swapping, and without the kernel ending somebody for it.

    Limits count where they are those of control groups of version 2.
    """
    return min([psutil.virtual_memory().available, *_rooms(cgroups, own)])


def _rooms(cgroups: Path, own: Path) -> list[int]:
    """What is left in this process's control group, and in each one around it."""
    try:
        lines = own.read_text().splitlines()
    except OSError:  # no Linux
        return []
    paths = [PurePosixPath(line[3:].lstrip("/")) for line in lines if line.startswith("0::/")]
    rooms = [_room(cgroups / place) for path in paths for place in (path, *path.parents)]
    return [room for room in rooms if room is not None]


def _room(group: Path) -> int | None:
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        pairs = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        statistics = {name: int(value) for name, value in pairs}
    except (OSError, ValueError):  # there is none, or no limit ("max")
        return None
    # Pages of files are given up where the room is needed.
    files = statistics.get("active_file", 0) + statistics.get("inactive_file", 0)
    return max(0, limit - used + files)
