"""What becomes of a request when its client, worker or scheduler goes away."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from pronk.frontend import exchange as exchange_module
from pronk.frontend import link as link_module
from pronk.frontend import relay as relay_module
from pronk.frontend.stream import Stream
from pronk.protocol.codec import decode
from pronk.protocol.errors import Code
from pronk.protocol.messages.failure import Failure
from pronk.protocol.messages.fleet import Hello, RequestReport
from pronk.protocol.messages.generation import (
    Cancel,
    Generate,
    Lost,
)
from pronk.protocol.process import new_incarnation
from pronk.protocol.state import StateDirectory
from support.played import (
    PATIENCE,
    QUESTION,
    Stack,
    answering,
    read_to_the_end,
    running,
    starting,
    until,
)

# Lives and deaths


@pytest.mark.parametrize("texts", [(), ("Hi",)])
async def test_a_client_that_leaves_has_its_generation_cancelled(
    stack: Stack, texts: tuple[str, ...]
) -> None:
    starting(stack, *texts)
    asking = asyncio.create_task(stack.client.post("/api/chat", json=QUESTION))
    worker = await until(lambda: stack.scheduler.workers, "a worker has it")
    if texts:
        response = await asking
        await response.content.readline()
        response.close()
    else:
        asking.cancel()
    await until(lambda: worker[0].cancelled, "the worker is told")
    await until(lambda: stack.scheduler.all(Cancel), "the scheduler is told")


async def test_a_client_that_leaves_the_queue_is_taken_out_of_it(stack: Stack) -> None:
    asking = asyncio.create_task(stack.client.post("/api/chat", json=QUESTION))
    (header,) = await until(lambda: stack.scheduler.all(Generate), "it waits")
    asking.cancel()
    (cancel,) = await until(lambda: stack.scheduler.all(Cancel), "the scheduler is told")
    assert (cancel.request, cancel.attempt) == (header.request, header.attempt)
    # It may have been on its way to a worker already: that one is told when it speaks.
    worker = stack.scheduler.worker(header).started()
    await until(lambda: worker.cancelled, "a worker that got it all the same is told")


async def test_a_scheduler_that_is_only_slow_hears_who_left_the_queue(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = asyncio.create_task(stack.client.post("/api/chat", json=QUESTION))
    await until(lambda: stack.scheduler.all(Generate), "it waits")
    monkeypatch.setattr(link_module, "QUIET", 0.0)  # as after a standstill: it counts as down
    asking.cancel()
    await until(lambda: stack.scheduler.all(Cancel), "the scheduler is told")


async def test_a_worker_lost_before_the_first_piece_is_not_noticed(stack: Stack) -> None:
    def serve(header: Generate) -> None:
        worker = stack.scheduler.worker(header).started()
        if header.attempt == 1:
            stack.scheduler.tell(
                Lost(header.request, 1, Failure(Code.WORKER_LOST, "it died"), died=True),
            )
        else:
            # What is left of the first attempt must not mix with the second.
            stack.scheduler.workers[0].says("old")
            worker.says("new").finished()

    stack.scheduler.on_generate = serve
    *pieces, last = await stack.lines("/api/chat", QUESTION)
    assert [line["message"]["content"] for line in pieces] == ["new"]
    assert last["done"] is True
    first, second = stack.scheduler.all(Generate)
    assert (first.request, first.seed, first.attempt, second.attempt) == (
        *(second.request, second.seed),
        *(1, 2),
    )
    assert (first.suspect, second.suspect) == (False, True)


def dying(stack: Stack, *, alone: bool) -> Callable[[Generate], None]:
    """Has the worker of every request die after one token."""

    dying: set[asyncio.Task[None]] = set()

    async def die(header: Generate) -> None:
        await until(lambda: received(stack) == 1, "the token is there")
        failure = Failure(Code.WORKER_LOST, "it died")
        stack.scheduler.tell(Lost(header.request, header.attempt, failure, died=True, alone=alone))

    def serve(header: Generate) -> None:
        if header.attempt == 1:
            stack.scheduler.worker(header).started().says("Hi")
        dying.add(asyncio.create_task(die(header)))

    return serve


def received(stack: Stack) -> int:
    """Tokens of the one answer under way that have reached the frontend."""
    (stream,) = stack.frontend._relay._exchanges.values()
    assert isinstance(stream, Stream)
    return len(stream._tokens)


async def test_a_request_over_which_two_workers_die_ends_with_an_error(stack: Stack) -> None:
    stack.scheduler.on_generate = dying(stack, alone=True)
    piece, last = await stack.lines("/api/chat", QUESTION)
    assert piece["message"]["content"] == "Hi"
    assert list(last) == ["error"]
    assert "not tried again" in last["error"]
    assert len(stack.scheduler.all(Generate)) == 2


async def test_a_request_beside_one_that_kills_is_not_blamed_but_not_tried_for_ever(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_module, "MAX_ATTEMPTS", 5)
    stack.scheduler.on_generate = dying(stack, alone=False)
    _, last = await stack.lines("/api/chat", QUESTION)
    assert last == {"error": "it died"}
    assert len(stack.scheduler.all(Generate)) == 5


async def test_an_answer_too_long_to_be_sent_again_ends_with_the_loss(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "MOST_TOKEN_BYTES", -stack.settings.max_generation_body + 100)
    stack.scheduler.on_generate = dying(stack, alone=False)
    _, last = await stack.lines("/api/chat", QUESTION)
    assert last == {"error": "it died"}
    assert len(stack.scheduler.all(Generate)) == 1
    assert not stack.frontend._relay._exchanges


async def test_a_request_that_is_given_back_again_and_again_is_not_tried_for_ever(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_module, "MAX_ATTEMPTS", 6)
    stack.scheduler.on_generate = lambda header: stack.scheduler.worker(header).gives_back()
    began = time.monotonic()
    status, error, _ = await stack.request("POST", "/api/chat", json=QUESTION)
    assert (status, error) == (503, {"error": "the model moved"})
    headers = stack.scheduler.all(Generate)
    assert [header.attempt for header in headers] == [1, 2, 3, 4, 5, 6]
    assert not any(header.suspect for header in headers)
    assert time.monotonic() - began >= 0.05 + 0.1 + 0.2, "there are pauses between them"


async def test_a_worker_that_gives_a_request_back_has_it_tried_elsewhere(stack: Stack) -> None:
    def serve(header: Generate) -> None:
        worker = stack.scheduler.worker(header)
        if header.attempt == 1:
            worker.gives_back()
        else:
            worker.started().says("elsewhere").finished()

    stack.scheduler.on_generate = serve
    piece, last = await stack.lines("/api/chat", QUESTION)
    assert (piece["message"]["content"], last["done"]) == ("elsewhere", True)


async def test_only_the_worker_that_runs_a_request_may_end_it(stack: Stack) -> None:
    starting(stack, "Hi")
    async with stack.client.post("/api/chat", json=QUESTION) as response:
        await response.content.readline()
        (header,) = stack.scheduler.all(Generate)
        # A restarted scheduler may have sent it to a second one, too.
        second = stack.scheduler.worker(header)
        second.failed(Code.INTERNAL, "not here")
        second.gives_back()
        second.started()
        await until(lambda: second.cancelled, "the second one is told")
        stack.scheduler.workers[0].says("there").finished()
        rest = [json.loads(line) for line in (await response.content.read()).splitlines()]
        assert [line["message"]["content"] for line in rest] == ["there", ""]


async def test_a_frontend_that_stood_still_asks_who_still_works_for_it(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting(stack, "Hi")
    async with stack.client.post("/api/chat", json=QUESTION) as response:
        await response.content.readline()
        before = len(stack.scheduler.all(Hello))
        monkeypatch.setattr(link_module, "STANDSTILL", 0.5)
        time.sleep(1.7)  # noqa: ASYNC251  the frontend lives on this loop and stands still
        hello = await until(lambda: stack.scheduler.all(Hello)[before:], "it says hello again")
        (report,) = hello[0].requests
        assert report.worker == stack.scheduler.workers[0].id


async def test_a_request_of_which_nothing_is_heard_is_asked_for(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "SILENCE", 0.2)
    stack.scheduler.on_generate = lambda header: None
    question = QUESTION | {"stream": False}
    asking = asyncio.create_task(stack.request("POST", "/api/chat", json=question))

    def asked_for() -> list[RequestReport]:
        return [report for hello in stack.scheduler.all(Hello) for report in hello.requests]

    report = (await until(asked_for, "it says hello again"))[0]
    assert report.worker is None
    lost = Lost(report.request, 1, Failure(Code.WORKER_LOST, "it was lost"))
    stack.scheduler.tell(lost)
    retry = (await until(lambda: stack.scheduler.all(Generate)[1:], "another attempt"))[0]
    assert (retry.request, retry.attempt) == (report.request, 2)
    stack.scheduler.worker(retry).started().says("Hi").finished()
    status, _, _ = await asking
    assert status == 200


@pytest.mark.parametrize("streams", [True, False])
async def test_a_worker_lost_in_mid_stream_is_followed_by_one_that_goes_on(
    stack: Stack, streams: bool
) -> None:
    def serve(header: Generate) -> None:
        if header.attempt == 1:
            stack.scheduler.worker(header).started(context_length=512).says("He", "", "llo ")
            return
        worker = stack.scheduler.worker(header, index=3).started()
        stack.scheduler.workers[0].says("old")
        worker.says("world").finished()

    stack.scheduler.on_generate = serve
    asking = asyncio.create_task(
        stack.client.post("/api/chat", json=QUESTION | {"stream": streams})
    )
    relay = stack.frontend._relay
    await until(lambda: relay._exchanges, "it is accepted")
    await until(lambda: received(stack) == 3, "three tokens came")
    (first,) = stack.scheduler.all(Generate)
    failure = Failure(Code.WORKER_LOST, "it died")
    stack.scheduler.tell(Lost(first.request, 1, failure, died=True, alone=True))
    async with await asking as response:
        lines = [json.loads(line) for line in (await response.read()).splitlines()]
    texts = [line["message"]["content"] for line in lines]
    assert texts == (["He", "llo ", "world", ""] if streams else ["Hello world"])
    assert lines[-1]["eval_count"] == 4
    parts = ("load_duration", "prompt_eval_duration", "eval_duration")
    assert sum(lines[-1][part] for part in parts) <= lines[-1]["total_duration"]
    first, second = stack.scheduler.all(Generate)
    assert second == replace(first, attempt=2, suspect=True, context_length=512)
    bodies = [decode(stack.scheduler.bodies[first.request, attempt]) for attempt in (1, 2)]
    assert bodies[1] == replace(bodies[0], tokens=[7, 7, 7], released=6)
    assert not relay._exchanges
    assert relay._held_bytes == 0


@pytest.mark.parametrize("shown", [True, False])
async def test_missing_tokens_are_the_loss_of_the_attempt(stack: Stack, shown: bool) -> None:
    def serve(header: Generate) -> None:
        if header.attempt == 1:
            worker = stack.scheduler.worker(header).started()
            worker.says(*(["Hi"] if shown else [])).says("gap", skip=1)
        else:
            stack.scheduler.worker(header, index=int(shown)).started().says("whole").finished()

    stack.scheduler.on_generate = serve
    *pieces, last = await stack.lines("/api/chat", QUESTION)
    texts = [line["message"]["content"] for line in pieces]
    assert texts == (["Hi", "whole"] if shown else ["whole"])
    assert last["eval_count"] == len(texts)
    assert not stack.scheduler.all(Generate)[1].suspect
    await until(lambda: stack.scheduler.workers[0].cancelled, "the broken attempt is cancelled")


async def test_an_end_that_counts_more_tokens_than_came_is_no_end(stack: Stack) -> None:
    stack.scheduler.on_generate = lambda header: (
        stack.scheduler.worker(header, index=header.attempt - 1)
        .started()
        .says("Hi")
        .finished(eval_count=2)
    )
    *pieces, last = await stack.lines("/api/chat", QUESTION)
    assert ([line["message"]["content"] for line in pieces], last["eval_count"]) == (["Hi"] * 2, 2)


async def test_the_bodies_of_requests_under_way_are_bounded(state: StateDirectory) -> None:
    async with running(state, max_queue_bytes=6_000) as stack:
        starting(stack, "Hi")
        question = QUESTION | {"messages": [{"role": "user", "content": "x" * 3_000}]}
        async with stack.client.post("/api/chat", json=question) as response:
            await response.content.readline()
            status, error, headers = await stack.request("POST", "/api/chat", json=question)
            assert (status, "too much memory" in error["error"]) == (503, True)
            assert int(headers["Retry-After"]) >= 1
        await until(lambda: not stack.frontend._relay._exchanges, "the first one is abandoned")
        answering(stack, "Hi")
        assert (await stack.lines("/api/chat", question))[-1]["done"] is True


async def test_a_new_scheduler_hears_of_everything_again(stack: Stack) -> None:
    starting(stack, "Hi")
    async with stack.client.post("/api/chat", json=QUESTION) as response:
        await response.content.readline()
        (running_one,) = stack.scheduler.all(Generate)
        stack.scheduler.on_generate = lambda header: None
        waiting = asyncio.create_task(
            stack.request("POST", "/api/chat", json={**QUESTION, "stream": False})
        )
        await until(lambda: len(stack.scheduler.all(Generate)) == 2, "a second one waits")
        before = stack.scheduler.all(Generate)[1]
        stack.restart_scheduler()
        answering(stack, "late")
        status, answer, _ = await waiting
        assert (status, answer["message"]["content"]) == (200, "late")
        (again,) = stack.scheduler.all(Generate)
        assert (again.request, again.attempt) == (before.request, before.attempt)
        reports = {
            report.request: report.worker
            for hello in stack.scheduler.all(Hello)
            for report in hello.requests
        }
        worker = stack.scheduler.workers[0]
        assert reports[running_one.request] == worker.id
        # The stream that ran did not notice.
        worker.says("there").finished()
        rest = [json.loads(line) for line in (await response.content.read()).splitlines()]
        assert rest[0]["message"]["content"] == "there"
        assert rest[-1]["done"] is True


async def test_without_a_scheduler_ps_says_so_and_the_library_answers(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "QUESTION_SECONDS", 0.2)
    stack.scheduler.close()
    status, error, headers = await stack.request("GET", "/api/ps")
    assert status == 503
    assert "scheduler" in error["error"]
    assert int(headers["Retry-After"]) >= 1
    status, tags, _ = await stack.request("GET", "/api/tags")
    assert (status, len(tags["models"])) == (200, 1)


async def test_a_scheduler_with_another_boot_id_is_greeted_again(stack: Stack) -> None:
    before = len(stack.scheduler.all(Hello))
    stack.scheduler.boot_id = new_incarnation()
    await until(lambda: len(stack.scheduler.all(Hello)) > before, "another greeting")


async def test_what_is_asked_in_a_silence_too_short_to_be_noticed_is_submitted_after_it(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "QUIET", 0.5)
    monkeypatch.setattr(link_module, "BEAT", 60.0)
    async with running(state) as stack:
        relay = stack.frontend._relay
        answering(stack, "Hi")
        await until(lambda: relay._link.up, "the scheduler is known")
        stack.scheduler.silent = True
        await stack.request("GET", "/api/ps")  # what it said before has been heard now
        await until(lambda: not relay._link.up, "the scheduler counts as down")
        question = QUESTION | {"stream": False}
        asking = asyncio.create_task(stack.request("POST", "/api/chat", json=question))
        await until(lambda: relay._exchanges, "the request is accepted")
        assert not stack.scheduler.all(Generate)
        stack.scheduler.silent = False
        await until(asking.done, "the answer")
        assert asking.result()[0] == 200


async def test_nobody_waits_for_ever_for_a_scheduler(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(state, max_queue=1) as stack:
        await stack.request("GET", "/api/ps")  # the scheduler was heard of, and can fall silent
        stack.scheduler.close()
        monkeypatch.setattr(link_module, "QUIET", 0.0)  # whatever may still be on its way
        await until(lambda: "no heartbeat" in caplog.text, "the silence is noticed")
        asking = {
            asyncio.create_task(stack.request("POST", "/api/chat", json=QUESTION)) for _ in range(2)
        }
        done, waiting = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        status, error, _ = done.pop().result()
        assert (status, "too many" in error["error"]) == (503, True)
        for module in (link_module, relay_module):
            monkeypatch.setattr(module, "GONE", 0.5)
        status, error, headers = await waiting.pop()
        assert (status, "scheduler" in error["error"]) == (503, True)
        assert int(headers["Retry-After"]) >= 1


async def test_a_client_that_does_not_read_is_dropped_and_its_generation_cancelled(
    state: StateDirectory,
) -> None:
    async with running(state, max_stream_buffer=200_000) as stack:
        starting(stack, "Hi")
        body = json.dumps(QUESTION).encode()
        with socket.create_connection(("127.0.0.1", stack.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\n")
            client.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            (worker,) = await until(lambda: stack.scheduler.workers, "a worker has it")
            for _ in range(2_000):
                worker.says("x" * 50_000)
                await asyncio.sleep(0)
                if worker.cancelled:
                    break
            await until(lambda: worker.cancelled, "the worker is told")
            client.settimeout(PATIENCE)
            # It finds the connection cut, with much less in it than was generated.
            got = await asyncio.to_thread(read_to_the_end, client)
            assert got < 100_000_000
        status, _, _ = await stack.request("GET", "/api/version")
        assert status == 200
