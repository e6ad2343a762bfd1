"""Waiting for an answer for so long, and no less because a process stood still meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

_PARTS = 10


async def within(answer: asyncio.Future[Any], seconds: float) -> bool:
    """Whether `answer` is there after so many seconds at most; it is not cancelled if it is not.

    They are waited for in parts that are counted. Of a standstill, whoever stood still, no more
    than one part is lost: timers run before what came meanwhile is read.
    """
    for _ in range(_PARTS):
        if answer.done():
            break
        await asyncio.wait({answer}, timeout=seconds / _PARTS)
    return answer.done()
