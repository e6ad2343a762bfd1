"""A request may take so long and no longer, wherever it is."""

from __future__ import annotations

import json
import time
from dataclasses import replace

from pronk.protocol.deadline import deadline_after, is_over
from pronk.protocol.errors import Code
from pronk.protocol.messages.generation import Cancel, Failed, Generate
from pronk.protocol.state import StateDirectory
from support.played import QUESTION, Stack, answering, running, starting, until
from support.stage import Stage


def test_a_deadline_is_a_point_in_time_and_none_is_never_over():
    before = time.time()
    deadline = deadline_after(5)
    assert deadline is not None
    assert before + 5 <= deadline <= time.time() + 5
    assert is_over(deadline, deadline + 0.1)
    assert not is_over(deadline, deadline - 0.1)
    assert deadline_after(0) is None
    assert not is_over(None, time.time())


async def test_a_request_that_takes_too_long_is_a_504(state: StateDirectory) -> None:
    async with running(state, request_timeout=0.2) as stack:
        async with stack.client.post("/api/chat", json=QUESTION) as response:
            assert response.status == 504
            assert "PRONK_REQUEST_TIMEOUT" in (await response.json())["error"]
        await until(lambda: stack.scheduler.all(Cancel), "the scheduler is told")


async def test_a_stream_that_takes_too_long_ends_with_an_error_behind_what_was_said(
    state: StateDirectory,
) -> None:
    async with running(state, request_timeout=3600) as stack:
        starting(stack, "Once")
        async with stack.client.post("/api/chat", json=QUESTION) as response:
            first = json.loads(await response.content.readline())
            (stream,) = stack.frontend._relay._exchanges.values()
            stream.header = replace(stream.header, deadline=time.time() - 1)
            (last,) = [json.loads(line) for line in (await response.read()).splitlines()]
        assert first["message"]["content"] == "Once"
        assert "longer than it may" in last["error"]
        (worker,) = stack.scheduler.workers
        await until(lambda: worker.cancelled, "the worker is told")


async def test_a_request_carries_its_deadline(state: StateDirectory) -> None:
    async with running(state, request_timeout=60) as stack:
        answering(stack, "Hi")
        before = time.time()
        await stack.lines("/api/chat", QUESTION)
        (header,) = stack.scheduler.all(Generate)
        assert before + 60 <= header.deadline <= time.time() + 60


async def test_by_default_a_request_may_take_as_long_as_it_takes(stack: Stack) -> None:
    answering(stack, "Hi")
    await stack.lines("/api/chat", QUESTION)
    (header,) = stack.scheduler.all(Generate)
    assert header.deadline is None


async def test_what_waits_past_its_deadline_is_ended_and_what_has_time_is_served(stage: Stage):
    worker, frontend = stage.worker(), stage.frontend()
    first = frontend.generate()
    await worker.load()
    await worker.expect(Generate)
    over = time.time() - 1
    late = [frontend.generate(deadline=over), frontend.embed(deadline=over)]
    timely = frontend.generate(deadline=time.time() + 3600)
    for header in late:
        failed: Failed = await frontend.expect(Failed)
        assert (failed.request, failed.failure.code) == (header.request, Code.DEADLINE_EXCEEDED)
    worker.release(first)
    assert (await worker.expect(Generate))[0] == timely
