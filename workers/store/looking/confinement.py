"""What a process gives up before it looks at a file that may come from anybody."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Sequence
from pathlib import Path

from ....protocol.process import die_with_parent

_MOST_DESCRIPTORS = 1024 * 1024


def confine(*, memory: int, seconds: int, written: int, keep: Sequence[int] = ()) -> None:
    """Leaves this process `memory` bytes beside what it has, so many `seconds` of computing, and
    files of at most `written` bytes, for ever. It ends with its parent, and dumps no core.

    Descriptors but the standard ones and those to `keep` are closed, wherever they came from.
    """
    die_with_parent()
    start = 3
    for descriptor in (*sorted(keep), _MOST_DESCRIPTORS):
        os.closerange(start, descriptor)
        start = descriptor + 1
    limits = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: written,
    }
    if (taken := _address_space()) is not None:
        limits[resource.RLIMIT_AS] = taken + memory
    for kind, limit in limits.items():
        _lower(kind, limit)
    os.environ.clear()


def _lower(kind: int, limit: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    with contextlib.suppress(ValueError, OSError):  # macOS knows no limit to some of them
        resource.setrlimit(kind, (limit, limit))


def _address_space() -> int | None:
    """Bytes that this process has mapped; None where nothing tells."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[0]
    except OSError:
        return None
    return int(pages) * resource.getpagesize()
