"""Waiting for an answer when the process stands still."""

from __future__ import annotations

import asyncio
import time

import pytest

from pronk.protocol.patience import within


async def test_an_answer_that_came_during_a_standstill_counts() -> None:
    answer = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(within(answer, 0.2))
    await asyncio.sleep(0)
    time.sleep(0.3)  # noqa: ASYNC251  all that waits on this loop stands still
    await asyncio.sleep(0)  # its timer is over: that runs before anything is read
    answer.set_result(None)
    assert await waiting


async def test_what_does_not_come_is_given_up_and_not_cancelled() -> None:
    answer = asyncio.get_running_loop().create_future()
    began = time.monotonic()
    assert not await within(answer, 0.05)
    assert time.monotonic() - began > 0.04
    answer.set_result(None)
    assert await within(answer, 0.0)


async def test_whoever_gives_up_waiting_is_let_go() -> None:
    waiting = asyncio.create_task(within(asyncio.get_running_loop().create_future(), 3600.0))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
