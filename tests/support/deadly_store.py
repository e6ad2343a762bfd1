"""The store process, in which some pulls end the process: as `DEADLY` says, by the model's name.

usage: python -m support.deadly_store
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
from typing import Any

from pronk.protocol.messages.changes import PullModel
from pronk.workers.store import service, suspects
from pronk.workers.store.deliveries import Deliveries
from pronk.workers.store.report import Report

DEADLY = {
    "fault": lambda: ctypes.string_at(0),
    "exit": lambda: sys.exit("out of order"),
}


async def _pull(self: Deliveries, order: PullModel, report: Report) -> str | None:
    """`…/fault` dies at once, `…/fault-slow` when it has said so; `…/quick` succeeds, and all
    else never ends.
    """
    name = order.name.rsplit("/", 1)[-1].partition(":")[0]
    how, _, when = name.partition("-")
    report("pulling manifest")
    if when == "slow":
        await asyncio.sleep(0.05)
        report("verifying sha256 digest")
    if how in DEADLY:
        DEADLY[how]()
    if how == "quick":
        return None
    await asyncio.sleep(3600)
    return None


def main() -> None:
    patched: Any = Deliveries
    patched.pull = _pull
    suspects.ALONE_SECONDS = 1.0
    service.main()


if __name__ == "__main__":
    main()
