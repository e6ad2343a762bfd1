"""An order that ends the store's process, given by somebody who repeats it until it is answered."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.following import Following
from pronk.protocol.messages.changes import PullModel
from pronk.protocol.questions import Questions
from pronk.protocol.state import StateDirectory
from support.store_process import StoreProcess, log_of, store_process

PATIENCE = 120.0
MOST_LIVES = 8
TESTS = str(Path(__file__).parents[1])


@pytest.fixture
def root() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="pronk-", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@asynccontextmanager
async def a_life(root: Path) -> AsyncIterator[StoreProcess]:
    program = ("support.deadly_store",)
    async with store_process(root, program, PYTHONPATH=TESTS, PRONK_LOG_LEVEL="warning") as store:
        yield store


@asynccontextmanager
async def restarted(root: Path) -> AsyncIterator[list[int]]:
    """A supervisor: one life after the other; how they ended."""
    ends: list[int] = []

    async def supervise() -> None:
        while len(ends) < MOST_LIVES:
            async with a_life(root) as store:
                ends.append(await store.ended())

    task = asyncio.create_task(supervise())
    try:
        yield ends
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def outcome(questions: Questions, model: str) -> PronkError | None:
    """What a pull ends with, which is asked for again and again."""
    with Following(questions, lambda call: PullModel(call, f"models.test/a/{model}")) as change:
        try:
            async with asyncio.timeout(PATIENCE):
                await change.outcome()
        except PronkError as error:
            return error
    return None


@pytest.fixture
async def questions(root: Path) -> AsyncIterator[Questions]:
    state = StateDirectory(root / "state")
    state.prepare()
    questions = Questions(state.store)
    yield questions
    questions.close()


async def test_an_order_that_kills_the_store_is_refused_after_three_deaths(
    root: Path, questions: Questions
) -> None:
    async with restarted(root) as ends:
        error = await outcome(questions, "fault-slow")
        assert error
        assert error.code is Code.INTERNAL
        assert "not tried again" in error.message
        assert ends == [-signal.SIGSEGV] * 3
        # Whoever asks once more, and for something else, is answered by the store that lives.
        assert str(await outcome(questions, "fault-slow")) == str(error)
        assert await outcome(questions, "quick") is None
        assert len(ends) == 3
    log = log_of(root).read_text()
    assert log.count("the process before this one died:") == 3
    assert "Segmentation fault" in log


async def test_an_order_that_ends_the_process_in_order_is_answered(
    root: Path, questions: Questions
) -> None:
    async with restarted(root) as ends:
        error = await outcome(questions, "exit")
        assert error
        assert error.code is Code.UNAVAILABLE
        assert await outcome(questions, "quick") is None
        # More than once where its last words were not read before the connection was gone: they
        # are lost then, and the order is repeated.
        assert set(ends) == {1}
    assert "out of order" in log_of(root).read_text()


async def test_the_order_that_was_beside_it_goes_on(root: Path, questions: Questions) -> None:
    async with restarted(root) as ends:
        beside = asyncio.create_task(outcome(questions, "wait-slow"))
        # Nobody knows which of the two it was, so both are tried, one after the other.
        assert (await outcome(questions, "fault-slow")) is not None
        assert not beside.done()
        assert 3 <= len(ends) < MOST_LIVES
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)


async def test_kills_from_outside_blame_nobody(root: Path, questions: Questions) -> None:
    orders = root / "state" / "run" / "orders.json"

    def under_way() -> bool:
        try:
            return any(fields[6] for fields in json.loads(orders.read_bytes())["orders"].values())
        except FileNotFoundError:
            return False

    waiting = asyncio.create_task(outcome(questions, "wait-slow"))
    for _ in range(5):
        async with a_life(root) as store:
            async with asyncio.timeout(PATIENCE):
                while not under_way():
                    await asyncio.sleep(0.02)
            assert await store.kill() == -signal.SIGKILL
            orders_left = json.loads(orders.read_bytes())["orders"].values()
            assert all(fields[1] <= 5 for fields in orders_left)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
