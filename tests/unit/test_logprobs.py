"""Log probabilities: computed in the worker, told with the text that they belong to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import ollama
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pronk.frontend.dialects.ollama.lines import Lines
from pronk.frontend.dialects.ollama.requests import ChatRequest, GenerateRequest, parse
from pronk.frontend.operations.generation import Completion, Output
from pronk.frontend.stream import Stream, Verdict
from pronk.protocol.codec import decode, encode
from pronk.protocol.errors import PronkError
from pronk.protocol.messages.generation import (
    Caller,
    Chunk,
    Chunks,
    Finished,
    FinishReason,
    Generate,
    GenerateBody,
    Kind,
    PositionLogprobs,
    SamplingOptions,
    TokenLogprob,
)
from pronk.workers.inference.llama import Model
from pronk.workers.inference.logprobs import position_logprobs
from support.models import write_reciting_model

REQUEST = "a" * 32
HEADER = Generate(REQUEST, 1, "m", "d" * 64, Caller(), "f" * 16, "ipc:///tmp/x", 1, 1)


class Numbers:
    """Tokens that add their number to the text, and that are written in brackets."""

    def piece(self, token: int) -> bytes:
        return b"%d" % token

    def written(self, token: int) -> bytes:
        return b"<%d>" % token


def position(text: str, *others: str) -> PositionLogprobs:
    return PositionLogprobs(
        TokenLogprob(text.encode(), -0.5), [TokenLogprob(other.encode(), -1.0) for other in others]
    )


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.floats(-1000, 1000, width=32), min_size=1, max_size=300),
    st.integers(0, 25),
    st.data(),
)
def test_they_are_those_of_the_whole_vocabulary(
    values: list[float], top: int, data: st.DataObject
) -> None:
    logits = np.array(values, np.float32)
    token = data.draw(st.integers(0, len(values) - 1))
    told = position_logprobs(logits, token, top, Numbers())
    exact = logits.astype(np.float64) - max(values)
    exact -= math.log(np.exp(exact).sum())
    assert told.chosen.piece == b"%d" % token
    assert told.chosen.logprob == pytest.approx(exact[token], abs=1e-3)
    assert len(told.top) == min(top, len(values))
    for place, other in zip(np.argsort(-logits, kind="stable")[:top], told.top, strict=True):
        assert other.piece == b"<%d>" % place
        assert other.logprob == pytest.approx(exact[place], abs=1e-3)
    assert decode(encode(told_as_chunks(told))) == told_as_chunks(told)


def told_as_chunks(told: PositionLogprobs) -> Chunks:
    return Chunks([Chunk(REQUEST, 1, 0, [0], "x", [told])])


def test_a_large_vocabulary_and_what_is_masked() -> None:
    logits = np.full(50_000, -np.inf, np.float32)
    logits[[7, 40_000]] = 1.0, 1.0
    told = position_logprobs(logits, 40_000, 20, Numbers())
    assert told.chosen.logprob == pytest.approx(math.log(0.5))
    assert [other.piece for other in told.top] == [b"<7>", b"<40000>"]
    assert position_logprobs(logits, 8, 0, Numbers()) == PositionLogprobs(
        TokenLogprob(b"8", -9999.0), []
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path: Path = tmp_path_factory.mktemp("models") / "reciter.gguf"
    write_reciting_model(path, ["abc"])
    model = Model(path)
    yield model
    model.close()


def test_control_tokens_add_nothing_to_a_text_and_are_written_out_as_alternatives(
    model: Model,
) -> None:
    vocabulary = model.vocabulary
    end = vocabulary.size - 1
    logits = np.zeros(vocabulary.size, np.float32)
    logits[end] = 9.0
    told = position_logprobs(logits, end, 1, vocabulary)
    assert told.chosen.piece == b""
    assert told.top[0].piece == b"<|im_end|>"


# --- in the frontend


def stream() -> Stream:
    body = encode(GenerateBody(Kind.CHAT, SamplingOptions()))
    return Stream(HEADER, body, 10_000, lambda: None)


async def test_each_piece_of_text_brings_those_of_its_tokens() -> None:
    one = stream()
    one.add(Chunk(REQUEST, 1, 0, [1], "a", [position("a")]))
    one.add(Chunk(REQUEST, 1, 1, [2], "b", [position("b")]))
    taken = await one.take()
    assert taken.pieces == ["a", "b"]
    assert taken.logprobs == [[position("a")], [position("b")]]


async def test_tokens_whose_text_is_held_back_come_with_it() -> None:
    one = stream()
    one.add(Chunk(REQUEST, 1, 0, [1], "", [position("a")]))
    one.add(Chunk(REQUEST, 1, 1, [2, 3], "ab", [position("b"), position("c")]))
    assert (await one.take()).logprobs == [[position("a"), position("b")]]
    one.add(Chunk(REQUEST, 1, 3, [4], "c"))
    assert (await one.take()).logprobs == [[position("c")]]


async def test_the_tokens_of_a_stop_text_are_not_told_of() -> None:
    one = stream()
    one.add(Chunk(REQUEST, 1, 0, [1], "", [position("end")]))
    one.add(Chunk(REQUEST, 1, 1, [2], "en", [position("stop")]))
    one.add(Chunk(REQUEST, 1, 2, [3], "", [position("here")]))
    one.finish(Finished(REQUEST, 1, FinishReason.STOP, 3, 1, 1, 1))
    taken = await one.take()
    assert taken.finished
    assert taken.logprobs == [[position("end")]]


async def test_where_none_were_asked_for_there_are_none() -> None:
    one = stream()
    one.add(Chunk(REQUEST, 1, 0, [1], "a"))
    assert (await one.take()).logprobs is None


async def test_no_text_is_lost_where_they_begin_late() -> None:
    one = stream()
    one.add(Chunk(REQUEST, 1, 0, [1], "a"))
    one.add(Chunk(REQUEST, 1, 1, [2], "b", [position("b")]))
    taken = await one.take()
    assert taken.logprobs is not None
    assert len(taken.logprobs) == len(taken.pieces) == 2


async def test_those_whose_text_a_lost_attempt_held_back_come_with_the_next() -> None:
    one = stream()
    one.add(Chunk(REQUEST, 1, 0, [1], "", [position("a")]))
    assert one.try_again()
    one.add(Chunk(REQUEST, 2, 1, [2], "ab", [position("b")]))
    one.add(Chunk(REQUEST, 2, 2, [3], "c", [position("c")]))
    assert (await one.take()).logprobs == [[position("a"), position("b")], [position("c")]]


def test_what_waits_of_them_is_bounded() -> None:
    one = stream()
    many = [position("x", *"abcdefghij")] * 10
    verdicts = [one.add(Chunk(REQUEST, 1, index * 10, [1] * 10, "x", many)) for index in range(3)]
    assert Verdict.OVERFLOW in verdicts


# --- on the wire


@pytest.mark.parametrize("kind", list(Kind))
def test_ollamas_own_client_reads_them(kind: Kind) -> None:
    shape = ollama.ChatResponse if kind is Kind.CHAT else ollama.GenerateResponse
    completion = Completion(FinishReason.STOP, 9, 1, 1, 1, 2, 1, None)
    told = [[position("é", "e"), position("a")], []]
    lines = Lines(kind, "demo")
    first, second, last = lines.lines(Output(["éa", "b"], completion, told)).splitlines()
    read = shape.model_validate_json(first).logprobs
    assert read
    assert (read[0].token, read[0].logprob) == ("é", -0.5)
    assert read[0].top_logprobs
    assert read[0].top_logprobs[0].token == "e"
    assert read[1].top_logprobs is None
    assert orjson.loads(first)["logprobs"][0]["bytes"] == [0xC3, 0xA9]
    assert "logprobs" not in orjson.loads(second)
    assert "logprobs" not in orjson.loads(last)
    whole = lines.whole("éab", completion, told[0])
    read = shape.model_validate_json(whole).logprobs
    assert read
    assert "".join(token.token for token in read) == "éa"
    assert "logprobs" not in orjson.loads(lines.whole("x", completion, []))


def test_half_a_character_is_told_in_bytes() -> None:
    half = PositionLogprobs(TokenLogprob(b"\xc3", -0.5), [])
    line = Lines(Kind.CHAT, "m").lines(Output(["é"], None, [[half]]))
    assert orjson.loads(line)["logprobs"] == [{"token": "�", "logprob": -0.5, "bytes": [0xC3]}]


@pytest.mark.parametrize("kind", [ChatRequest, GenerateRequest])
def test_they_are_asked_for_as_in_ollama(kind: type[ChatRequest | GenerateRequest]) -> None:
    def asked(**fields: object) -> int | None:
        return parse(kind, {"model": "demo", **fields}).generation().logprobs

    assert asked() is None
    assert asked(logprobs=False, top_logprobs=5) is None
    assert asked(top_logprobs=5) is None
    assert asked(logprobs=True) == 0
    assert asked(logprobs=True, top_logprobs=20) == 20
    for wrong in (21, -1, "5", 1.5, True):
        with pytest.raises(PronkError, match="top_logprobs: must be an integer from 0 to 20; got"):
            asked(logprobs=True, top_logprobs=wrong)
    with pytest.raises(PronkError, match="logprobs: "):
        asked(logprobs="yes")
