"""One answer's life in the frontend, without sockets."""

from __future__ import annotations

import asyncio

import pytest

from pronk.frontend.exchange import MAX_ATTEMPTS, Phase
from pronk.frontend.stream import Stream, Verdict
from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.generation import Caller, Chunk, Finished, FinishReason, Generate

REQUEST = "a" * 32
HEADER = Generate(
    request=REQUEST,
    attempt=1,
    model="demo:latest",
    digest="d" * 64,
    caller=Caller(),
    frontend="f" * 16,
    reply_to="ipc:///tmp/x",
    seed=1,
    cost=1,
)


def stream(limit: int = 10_000) -> Stream:
    return Stream(HEADER, b"body", limit, lambda: None)


def chunk(index: int, text: str, tokens: int = 1) -> Chunk:
    return Chunk(REQUEST, 1, index, [7] * tokens, text)


def finished(eval_count: int) -> Finished:
    return Finished(REQUEST, 1, FinishReason.STOP, eval_count, 1, 1, 1)


async def test_what_waits_comes_all_at_once() -> None:
    one = stream()
    one.started("w" * 16)
    for index, text in enumerate("abc"):
        assert one.add(chunk(index, text)) is Verdict.GOOD
    assert (await one.take()).pieces == ["a", "b", "c"]
    one.add(chunk(3, "d"))
    one.finish(finished(4))
    last = await one.take()
    assert last.pieces == ["d"]
    assert last.finished is not None
    assert one.phase is Phase.ENDED


async def test_a_reader_that_keeps_up_gets_each_piece_at_once() -> None:
    one = stream()
    reading = asyncio.create_task(one.take())
    await asyncio.sleep(0)
    one.add(chunk(0, "a"))
    assert (await reading).pieces == ["a"]


async def test_an_error_comes_after_the_text_before_it() -> None:
    one = stream()
    one.add(chunk(0, "a"))
    one.fail(PronkError(Code.INTERNAL, "because"))
    assert (await one.take()).pieces == ["a"]
    with pytest.raises(PronkError, match="because"):
        await one.take()


async def test_tokens_without_text_wake_nobody_and_count() -> None:
    one = stream()
    assert one.add(chunk(0, "", tokens=3)) is Verdict.GOOD
    assert one.add(chunk(3, "abc", tokens=0)) is Verdict.GOOD
    assert one.finish(finished(3)) is Verdict.GOOD


def test_a_gap_or_a_repetition_is_noticed() -> None:
    for index in (1, 5):
        assert stream().add(chunk(index, "x")) is Verdict.GAP
    one = stream()
    one.add(chunk(0, "x"))
    assert one.add(chunk(0, "x")) is Verdict.GAP
    assert one.finish(finished(2)) is Verdict.GAP
    assert one.phase is not Phase.ENDED


async def test_what_a_slow_reader_leaves_is_bounded_in_bytes_and_in_pieces() -> None:
    one = stream(limit=10_000)
    assert one.add(chunk(0, "ü" * 6_000)) is Verdict.OVERFLOW
    other = stream(limit=10_000)
    verdicts = [other.add(chunk(index, "x")) for index in range(200)]
    assert Verdict.OVERFLOW in verdicts
    await other.take()
    assert other.add(chunk(200, "x")) is Verdict.GOOD


def test_another_attempt_is_made_once_and_never_after_something_was_shown() -> None:
    one = stream()
    for attempt in range(2, MAX_ATTEMPTS + 1):
        one.started("w" * 16)
        assert one.try_again()
        assert (one.header.attempt, one.phase, one.worker) == (attempt, Phase.WAITING, None)
        assert one.body == b"body"
    assert not one.try_again()
    shown = stream()
    shown.add(chunk(0, "x"))
    assert not shown.try_again()
    ended = stream()
    ended.finish(finished(0))
    assert not ended.try_again()


def test_held_back_tokens_of_a_lost_attempt_do_not_count_in_the_next() -> None:
    one = stream()
    one.add(chunk(0, "", tokens=4))
    assert one.try_again()
    assert one.add(chunk(0, "x")) is Verdict.GOOD
