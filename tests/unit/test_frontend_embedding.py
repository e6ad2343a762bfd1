"""Requests for vectors in the frontend: jobs, their order, and what becomes of lost ones."""

from __future__ import annotations

import asyncio

import pytest

from pronk.frontend.operations.embedding import JOB_BYTES, JOB_INPUTS, WINDOW, split
from pronk.protocol.codec import decode
from pronk.protocol.errors import Code
from pronk.protocol.messages.embedding import Embed, EmbedBody
from pronk.protocol.messages.failure import Failure
from pronk.protocol.messages.generation import Cancel, Lost, Preload
from support.played import Stack, until

ONE = {"model": "demo", "input": "sky"}
LIST = {"model": "demo", "input": [str(number) for number in range(200)]}


def body_of(stack: Stack, header: Embed) -> EmbedBody:
    body = decode(stack.scheduler.bodies[header.request, header.attempt])
    assert isinstance(body, EmbedBody)
    return body


def answering_numbers(stack: Stack) -> None:
    """Has every text answered with the number that it is."""

    def serve(header: Embed) -> None:
        rows = [[float(text), 0.5] for text in body_of(stack, header).inputs]
        stack.scheduler.worker(header).started().embedded(*rows)

    stack.scheduler.on_embed = serve


def test_a_list_is_split_into_small_jobs_that_hold_all_of_it_in_order() -> None:
    texts = [*map(str, range(150)), "x" * (JOB_BYTES + 1), "y", "ü" * (JOB_BYTES // 4), "z"] * 2
    jobs = list(split(tuple(texts)))
    assert [text for _, job in jobs for text in job] == texts
    position = 0
    for first, job in jobs:
        assert first == position
        assert len(job) <= JOB_INPUTS
        assert len(job) == 1 or sum(len(text.encode()) for text in job) <= JOB_BYTES
        position += len(job)
    assert len(jobs) < 12
    assert list(split(())) == []


async def test_a_long_list_is_put_together_in_order_whatever_comes_first(stack: Stack) -> None:
    waiting: list[Embed] = []

    def serve(header: Embed) -> None:
        waiting.append(header)
        if len(waiting) == 2:  # the second job of two is answered first
            for one in reversed(waiting):
                rows = [[float(text)] for text in body_of(stack, one).inputs]
                stack.scheduler.worker(one).started().embedded(*rows)
            waiting.clear()

    stack.scheduler.on_embed = serve
    status, answer, _ = await stack.request("POST", "/api/embed", json=LIST)
    assert status == 200
    assert answer["embeddings"] == [[float(number)] for number in range(200)]
    assert answer["prompt_eval_count"] == 3 * 4
    bodies = [body_of(stack, header) for header in stack.scheduler.all(Embed)]
    assert [body.first for body in bodies] == [0, 64, 128, 192]


async def test_no_more_than_a_window_of_jobs_is_under_way(stack: Stack) -> None:
    asking = asyncio.create_task(stack.request("POST", "/api/embed", json=LIST))
    headers = await until(lambda: len(stack.scheduler.all(Embed)) == WINDOW, "the window is full")
    headers = stack.scheduler.all(Embed)
    answering_numbers(stack)
    for header in headers:
        stack.scheduler.on_embed(header)
    assert (await asking)[0] == 200
    assert len(stack.scheduler.all(Embed)) == 4


async def test_what_the_client_asks_for_reaches_the_worker(stack: Stack) -> None:
    stack.scheduler.on_embed = lambda header: stack.scheduler.worker(header).embedded([1.0])
    request = ONE | {"truncate": False, "dimensions": 7, "keep_alive": 60}
    await stack.request("POST", "/api/embed", json=request | {"options": {"num_ctx": 99}})
    await stack.request("POST", "/api/embeddings", json={"model": "demo", "prompt": "sea"})
    ranking = {"model": "demo", "query": "why", "documents": ["sky"]}
    await stack.request("POST", "/api/rerank", json=ranking)
    first, second, third = stack.scheduler.all(Embed)
    assert (first.context_length, first.keep_alive, first.caller.subject) == (
        99,
        60,
        "anonymous@127.0.0.1",
    )
    assert body_of(stack, first) == EmbedBody(["sky"], truncate=False, dimensions=7)
    assert body_of(stack, second) == EmbedBody(["sea"], normalize=False)
    assert body_of(stack, third) == EmbedBody(["sky"], query="why", normalize=False)


async def test_a_job_whose_worker_dies_is_tried_again_until_it_is_to_blame(stack: Stack) -> None:
    def serve(header: Embed) -> None:
        worker = stack.scheduler.worker(header).started()
        if header.attempt == 1:
            failure = Failure(Code.WORKER_LOST, "it died")
            lost = Lost(header.request, 1, failure, died=True, alone=True)
            stack.scheduler.tell(lost)
        else:
            worker.embedded([1.0, 2.0])

    stack.scheduler.on_embed = serve
    status, answer, _ = await stack.request("POST", "/api/embed", json=ONE)
    assert (status, answer["embeddings"]) == (200, [[1.0, 2.0]])
    stack.scheduler.on_embed = lambda header: stack.scheduler.tell(
        Lost(
            header.request,
            header.attempt,
            Failure(Code.WORKER_LOST, "it died"),
            died=True,
            alone=header.attempt > 1,
        )
    )
    status, answer, _ = await stack.request("POST", "/api/embed", json=ONE)
    assert (status, "not tried again" in answer["error"]) == (500, True)
    suspects = [header.suspect for header in stack.scheduler.all(Embed)]
    assert suspects == [False, True, False, True, True]


async def test_an_answer_that_is_not_whole_counts_as_lost(stack: Stack) -> None:
    stack.scheduler.on_embed = lambda header: (
        stack.scheduler.worker(header).started().embedded([1.0], missing=2 - header.attempt)
    )
    status, answer, _ = await stack.request("POST", "/api/embed", json=ONE)
    assert (status, answer["embeddings"]) == (200, [[1.0]])
    assert [header.attempt for header in stack.scheduler.all(Embed)] == [1, 2]


async def test_a_waiting_job_is_submitted_again_to_the_next_scheduler(stack: Stack) -> None:
    asking = asyncio.create_task(stack.request("POST", "/api/embed", json=ONE))
    (header,) = await until(lambda: stack.scheduler.all(Embed), "it waits")
    stack.restart_scheduler()
    stack.scheduler.on_embed = lambda header: (
        stack.scheduler.worker(header).started().embedded([1.0])
    )
    status, answer, _ = await asking
    assert (status, answer["embeddings"]) == (200, [[1.0]])
    assert stack.scheduler.all(Embed) == [header]


async def test_a_client_that_leaves_has_all_its_jobs_cancelled(stack: Stack) -> None:
    asking = asyncio.create_task(stack.client.post("/api/embed", json=LIST))
    await until(lambda: len(stack.scheduler.all(Embed)) == WINDOW, "two jobs wait")
    asking.cancel()
    await until(lambda: len(stack.scheduler.all(Cancel)) == WINDOW, "the scheduler is told")
    cancelled = {cancel.request for cancel in stack.scheduler.all(Cancel)}
    assert cancelled == {header.request for header in stack.scheduler.all(Embed)}


async def test_a_job_that_fails_ends_the_request_and_cancels_its_others(stack: Stack) -> None:
    def serve(header: Embed) -> None:
        if body_of(stack, header).first == 0:
            worker = stack.scheduler.worker(header).started()
            worker.failed(Code.INVALID_REQUEST, "input[3] is too long")

    stack.scheduler.on_embed = serve
    status, answer, _ = await stack.request("POST", "/api/embed", json=LIST)
    assert (status, answer) == (400, {"error": "input[3] is too long"})
    await until(lambda: stack.scheduler.all(Cancel), "the second job is cancelled")


@pytest.mark.parametrize("texts", [[], "", None])
async def test_without_texts_the_model_is_loaded(stack: Stack, texts: object) -> None:
    request = {"model": "demo", "input": texts, "keep_alive": 5, "options": {"num_ctx": 77}}
    status, answer, _ = await stack.request("POST", "/api/embed", json=request)
    assert (status, answer["embeddings"], answer["prompt_eval_count"]) == (200, [], 0)
    (preload,) = stack.scheduler.all(Preload)
    assert (preload.keep_alive, preload.context_length) == (5, 77)
    assert not stack.scheduler.all(Embed)
