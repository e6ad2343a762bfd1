"""One answer's life in the frontend, without sockets."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pronk.frontend.exchange import MAX_ATTEMPTS, Phase
from pronk.frontend.stream import Stream, Thinking, Verdict
from pronk.protocol.codec import decode, encode
from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.generation import (
    Caller,
    Chunk,
    Finished,
    FinishReason,
    Generate,
    GenerateBody,
    Kind,
    PositionLogprobs,
    SamplingOptions,
    TokenLogprob,
    ToolCall,
)

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


BODY = encode(GenerateBody(Kind.CHAT, SamplingOptions(), prompt="hi"))


def stream(limit: int = 10_000) -> Stream:
    return Stream(HEADER, BODY, limit, lambda: None)


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


def body_of(one: Stream) -> GenerateBody:
    return decode(one.body)


def test_another_attempt_has_all_tokens_and_says_what_was_released() -> None:
    one = stream()
    assert one.try_again()
    assert (one.header.attempt, one.phase, one.worker) == (2, Phase.WAITING, None)
    assert one.body == BODY, "nothing came: nothing is added"
    one.add(chunk(0, "", tokens=4))
    one.add(chunk(4, "héllo"))
    assert one.try_again()
    assert body_of(one) == replace(decode(BODY), tokens=[7] * 5, released=5)
    assert one.add(chunk(4, "x")) is Verdict.GAP
    assert one.add(chunk(5, "x")) is Verdict.GOOD
    assert one.try_again()
    assert body_of(one) == replace(decode(BODY), tokens=[7] * 6, released=6)
    ended = stream()
    ended.finish(finished(0))
    assert not ended.try_again()
    assert ended.body == b""


def test_another_attempt_is_read_in_the_context_that_the_first_one_had() -> None:
    one = stream()
    one.placed(2048)
    assert one.try_again()
    assert one.header.context_length is None, "nothing of the prompt has been read to the end"
    one.placed(4096)
    one.add(chunk(0, ""))
    assert one.try_again()
    assert one.header.context_length == 4096


def test_only_a_death_that_counts_and_gets_no_further_is_held_against_a_request() -> None:
    one = stream()
    for _ in range(3):  # beside others
        assert one.try_again(died=True)
        assert one.header.suspect
    assert one.try_again(died=True, alone=True)
    one.add(chunk(0, "a"))
    assert one.try_again(died=True, alone=True), "it had got further"
    assert one.try_again(), "given back"
    assert one.header.suspect, "which clears nobody"
    assert not one.try_again(died=True, alone=True)
    assert one.blamed


def test_who_got_further_is_no_suspect_when_its_attempt_is_lost_alive() -> None:
    one = stream()
    assert one.try_again(died=True)
    one.add(chunk(0, "a"))
    assert one.try_again()
    assert not one.header.suspect


def test_no_request_is_tried_for_ever() -> None:
    one = stream()
    for attempt in range(1, MAX_ATTEMPTS):
        one.add(chunk(attempt - 1, "a"))
        assert one.try_again(died=True, alone=True)
    one.add(chunk(MAX_ATTEMPTS - 1, "a"))
    assert not one.try_again(died=True, alone=True)
    assert not one.blamed


async def test_the_accounts_of_several_attempts_include_the_pause() -> None:
    one = stream()
    one.started("w" * 16)
    began = one.started_at
    assert began
    one.add(chunk(0, "a"))
    await asyncio.sleep(0.01)
    one.try_again(died=True)
    one.started("v" * 16)
    assert one.started_at == began
    one.add(chunk(1, "b"))
    one.finish(finished(2))
    last = (await one.take()).finished
    assert last
    assert one.finished_at
    assert last.prompt_eval_duration + last.eval_duration == one.finished_at - began
    assert last.eval_duration >= 10_000_000
    assert (last.eval_count, last.prompt_eval_count) == (2, 1)


def test_an_attempt_that_brought_nothing_counts_as_waiting() -> None:
    one = stream()
    one.started("w" * 16)
    first = one.started_at
    one.try_again(died=True)
    one.started("v" * 16)
    assert first
    assert one.started_at
    assert one.started_at > first


# --- thinking and calls

CALL = ToolCall("f", {"a": "ü"}, "c1")


async def test_thinking_text_and_calls_come_in_their_order() -> None:
    one = stream()
    one.add(Chunk(REQUEST, 1, 0, [7], "b", None, "a", [CALL, CALL]))
    one.add(Chunk(REQUEST, 1, 1, [], "c"))
    taken = await one.take()
    assert taken.pieces == [Thinking("a"), "b", [CALL, CALL], "c"]
    assert taken.mixed
    one.add(chunk(1, "d"))
    assert not (await one.take()).mixed


def test_another_attempt_says_what_was_released_of_every_kind() -> None:
    one = stream()
    one.add(Chunk(REQUEST, 1, 0, [7], "", None, "hé"))
    one.add(Chunk(REQUEST, 1, 1, [7], "x", None, "", [CALL]))
    assert one.try_again()
    assert body_of(one).released == 4


async def test_thinking_and_calls_wake_a_reader() -> None:
    for said in (
        Chunk(REQUEST, 1, 0, [7], "", None, "a"),
        Chunk(REQUEST, 1, 0, [7], "", None, "", [CALL]),
    ):
        one = stream()
        reading = asyncio.create_task(one.take())
        await asyncio.sleep(0)
        one.add(said)
        assert len((await reading).pieces) == 1


def test_what_a_slow_reader_leaves_of_any_kind_is_bounded() -> None:
    thinking = Chunk(REQUEST, 1, 0, [7], "", None, "ü" * 6_000)
    assert stream(limit=10_000).add(thinking) is Verdict.OVERFLOW
    large = ToolCall("f", {"a": ["ü" * 1_000] * 6})
    assert stream(limit=10_000).add(Chunk(REQUEST, 1, 0, [7], "", None, "", [large])) is (
        Verdict.OVERFLOW
    )
    one = stream(limit=10_000)
    many = [one.add(Chunk(REQUEST, 1, n, [7], "", None, "", [CALL])) for n in range(200)]
    assert Verdict.OVERFLOW in many


async def test_where_the_worker_says_it_tokens_come_with_the_next_piece_of_any_kind() -> None:
    def position(piece: bytes) -> PositionLogprobs:
        return PositionLogprobs(TokenLogprob(piece, -0.5), [])

    one = stream()
    one.add(Chunk(REQUEST, 1, 0, [1], "", [position(b"<t>")], told=1))
    one.add(Chunk(REQUEST, 1, 1, [2], "", [position(b"a")], "a", told=2))
    one.add(Chunk(REQUEST, 1, 2, [3], "", [position(b"stop")], told=2))
    one.add(Chunk(REQUEST, 1, 3, [4], "", [position(b"</c>")], "", [CALL], 4))
    taken = await one.take()
    assert taken.logprobs == [
        [position(b"<t>"), position(b"a")],
        [position(b"stop"), position(b"</c>")],
    ]
    one.add(Chunk(REQUEST, 1, 4, [5], "", [position(b"</t>")], told=5))
    one.add(Chunk(REQUEST, 1, 5, [6], "", [position(b"END")], told=5))
    one.finish(finished(6))
    last = await one.take()
    assert (last.pieces, last.logprobs) == ([""], [[position(b"</t>")]])
