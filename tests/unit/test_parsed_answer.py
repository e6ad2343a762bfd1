"""Answers that are more than text, from tokens to what a frontend is sent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronk.protocol.codec import decode, encode
from pronk.protocol.messages.generation import (
    Chunk,
    Chunks,
    FinishReason,
    PositionLogprobs,
    TokenLogprob,
)
from pronk.workers.conversation.formats.said import Call, Content, Said, Thinking
from pronk.workers.inference.parsed_answer import ParsedAnswer
from pronk.workers.inference.reading import Reading, as_message, beyond, parcels, units
from pronk.workers.inference.stop import StopMatcher
from support.parsing import MARKERS, READING, MarkedParser, plain

END = 1000
KEY = ("a" * 32, 1)


class Words:
    """A vocabulary of bytes and of control tokens, each of which is written as a marker."""

    controls = ("<t>", "</t>", "<c>", "</c>", "<|noise|>")

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def written(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else self.controls[token - 256].encode()

    def ends_generation(self, token: int) -> bool:
        return token == END

    def tokens(self, text: str, *, control: bool) -> list[int]:
        """The text as tokens, its markers as control tokens or letter by letter."""
        tokens: list[int] = []
        while text:
            found = [n for n, each in enumerate(self.controls) if control and text.startswith(each)]
            tokens += [256 + found[0]] if found else text[0].encode()
            text = text[len(self.controls[found[0]]) if found else 1 :]
        return tokens


def begin(
    limit: int = 1000,
    stops: tuple[str, ...] = (),
    before: Sequence[int] = (),
    released: int = 0,
    reading: Reading = READING,
    *,
    logprobs: bool = False,
    parser: Any = None,
) -> ParsedAnswer:
    return ParsedAnswer(
        Words(),
        parser or MarkedParser(),
        reading,
        limit=limit,
        stops=StopMatcher(stops),
        before=before,
        released=released,
        logprobs=logprobs,
    )


def feed(answer: ParsedAnswer, tokens: Sequence[int]) -> list[Said]:
    said: list[Said] = []
    for token in tokens:
        if answer.reason:
            break
        said += answer.hear(token)
    return said


CALL = '<c>weather:{"city":"Köln"}</c>'
texts = st.lists(
    st.sampled_from([*MARKERS, CALL, "a", "é🦙", " <", "<c>x:1</c", "END", "EN", "\n"]), max_size=12
).map("".join)


@pytest.mark.parametrize("control", [True, False])
def test_thinking_text_and_calls_are_told_apart(control: bool) -> None:
    text = f"<t>hm</t>Let me see.{CALL}{CALL}"
    said = feed(begin(), [*Words().tokens(text, control=control), END])
    call = ("call", ("weather", {"city": "Köln"}))
    assert plain(said) == [("thinking", "hm"), ("text", "Let me see."), call, call]


@given(texts, st.booleans())
def test_it_is_what_the_parser_makes_of_the_whole_text(text: str, control: bool) -> None:
    said = feed(begin(), [*Words().tokens(text, control=control), END])
    parser = MarkedParser()
    assert plain(said) == plain([*parser.push(text), *parser.finish()])


@given(texts, st.booleans(), st.integers(0, 60), st.integers(1, 60), st.data())
def test_a_second_attempt_says_exactly_what_the_first_did_not(
    text: str, control: bool, sent: int, limit: int, data: st.DataObject
) -> None:
    tokens = [*Words().tokens(text, control=control), END]
    whole = begin(limit, ("END",))
    everything = feed(whole, tokens)

    first = begin(limit, ("END",))
    said = feed(first, tokens[:sent])
    # A worker may die between two chunks of a token: any part of what it said may have come.
    released = data.draw(st.integers(0, sum(map(units, said))))
    came = cut(said, released)
    second = begin(limit, ("END",), before=first.tokens, released=released)
    rest = [*second._pending, *feed(second, tokens[len(second.tokens) :])]

    assert plain([*came, *rest]) == plain(everything)
    assert (second.reason, second.tokens) == (whole.reason, whole.tokens)


def cut(said: list[Said], count: int) -> list[Said]:
    """The first units."""
    taken: list[Said] = []
    for each in said:
        if isinstance(each, Call):
            taken += [each] if count else []
        else:
            taken.append(type(each)(each.text[:count]))
        count = max(count - units(each), 0)
    return [each for each in taken if units(each)]


def test_stop_texts_end_it_wherever_they_are() -> None:
    words = Words()
    thinking = begin(stops=("END",))
    assert plain(feed(thinking, words.tokens("<t>a END b", control=True))) == [("thinking", "a ")]
    assert thinking.reason is FinishReason.STOP
    calling = begin(stops=("END",))
    said = feed(calling, words.tokens('x<c>f:{"a":"ENDE"}</c>', control=True))
    assert plain(said) == [("text", 'x<c>f:{"a":"')]
    marker = begin(stops=("</t>",))
    assert plain(feed(marker, words.tokens("<t>a</t>b", control=True))) == [("thinking", "a")]


def test_what_is_held_back_comes_with_the_last_token() -> None:
    answer = begin(limit=5)
    assert plain(feed(answer, list(b"ab<t>"[:4]))) == [("text", "ab")]
    assert plain(answer.hear(ord("c"))) == [("text", "<tc")]
    assert answer.reason is FinishReason.LENGTH
    unfinished = begin()
    assert plain(feed(unfinished, [*b'<c>f:{"a":1}', END])) == [("call", ("f", {"a": 1}))]


def test_control_tokens_that_are_no_markers_stay_invisible() -> None:
    tokens = [*b"a", 260, *b"b", END]
    assert plain(feed(begin(), tokens)) == [("text", "ab")]
    every = Reading(READING.begin)
    assert plain(feed(begin(reading=every), tokens)) == [("text", "a<|noise|>b")]


def test_a_parser_that_fails_leaves_text() -> None:
    class Broken(MarkedParser):
        def push(self, text: str) -> list[Said]:
            if text == "!":
                raise RecursionError
            return super().push(text)

    answer = begin(parser=Broken())
    assert plain(feed(answer, [*b"a!<t>b", END])) == [("text", "a!<t>b")]

    class Unfinished(MarkedParser):
        def finish(self) -> list[Said]:
            raise ValueError

    assert plain(feed(begin(parser=Unfinished()), [*b"ab", END])) == [("text", "ab")]


# --- what a frontend is sent


class Scripted:
    """A parser that says what it is told to, whatever comes."""

    def __init__(self, *said: Said) -> None:
        self._said = list(said)

    def push(self, text: str) -> list[Said]:
        said, self._said = self._said, []
        return said

    def finish(self) -> list[Said]:
        return []


def test_a_token_that_says_much_is_several_chunks_and_the_first_has_it() -> None:
    call = Call("f", {}, "c1")
    answer = begin(
        parser=Scripted(
            *(Thinking("a"), Thinking("b"), Content("c"), call, call),
            *(Content("d"), Thinking("e"), call),
        )
    )
    chunks = answer.chunks(KEY, 65)
    assert [(c.index, c.tokens, c.thinking, c.text, len(c.calls or ())) for c in chunks] == [
        (0, [65], "ab", "c", 2),
        (1, [], "", "d", 0),
        (1, [], "e", "", 1),
    ]
    assert answer.chunks(KEY, 66) == [Chunk(*KEY, 1, [66], "")]
    assert decode(encode(Chunks(chunks))) == Chunks(chunks)


def test_what_an_attempt_left_is_sent_without_a_token() -> None:
    tokens = Words().tokens(f"<t>hm</t>ab{CALL}", control=True)
    answer = begin(before=tokens, released=3)
    assert [(c.index, c.tokens, c.thinking, c.text) for c in answer.pending_chunks(KEY)] == [
        (len(tokens), [], "", "b")
    ]
    assert answer.pending_chunks(KEY)[0].calls
    assert begin(before=tokens, released=5).pending_chunks(KEY) == []


@given(st.lists(st.sampled_from([Thinking("ab"), Content("cd"), Call("f", {})]), max_size=8))
def test_parcels_keep_the_order(said: list[Said]) -> None:
    unpacked: list[Said] = []
    for parcel in parcels(said):
        unpacked += [Thinking(parcel.thinking)] if parcel.thinking else []
        unpacked += [Content(parcel.text)] if parcel.text else []
        unpacked += [Call(call.name, call.arguments) for call in parcel.calls or ()]
    assert plain(unpacked) == plain(said)
    assert all(plain(beyond(said, n)) == plain(drop(said, n)) for n in range(20))


def drop(said: list[Said], count: int) -> list[Said]:
    letters: list[Said] = []
    for each in said:
        letters += [each] if isinstance(each, Call) else [type(each)(one) for one in each.text]
    return letters[count:]


def test_any_arguments_travel() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    odd = {
        "half": "\ud800",
        "\udc00": [math.nan, -math.inf, 2**63, -(2**80), 10**400],
        "deep": deep,
        "set": {1, 2},
        "fine": [None, True, 1.5, {"ü": "🦙"}],
    }
    call = as_message(Call("f\ud83d", odd))
    chunk = Chunk(*KEY, 0, [], "", None, "", [call])
    assert decode(encode(Chunks([chunk]))).chunks == [chunk]
    assert call.name == "f\ufffd"
    assert call.arguments["half"] == "\ufffd"
    assert call.arguments["\ufffd"] == [None, None, 2.0**63, -(2.0**80), None]
    assert call.arguments["fine"] == odd["fine"]
    assert call.arguments["set"] is None


def test_a_call_has_the_id_that_the_model_gave_it_or_one_of_its_own() -> None:
    assert as_message(Call("f", {}, "chatcmpl-1")).id == "chatcmpl-1"
    ids = {as_message(Call("f", {})).id for _ in range(10)}
    assert len(ids) == 10
    assert all(each.startswith("call_") for each in ids)


# --- log probabilities


def position(piece: bytes) -> list[PositionLogprobs]:
    return [PositionLogprobs(TokenLogprob(piece, -0.5), [])]


def told(answer: ParsedAnswer, tokens: Sequence[int]) -> list[int | None]:
    counts: list[int | None] = []
    for token in tokens:
        logprobs = [] if token == END else position(Words().piece(token))
        counts.append(answer.chunks(KEY, token, logprobs)[0].told)
    return counts


def test_every_token_is_told_of_but_those_of_a_stop_text() -> None:
    words = Words()
    answer = begin(stops=("END",), logprobs=True)
    tokens = [*words.tokens("<t>a</t>b", control=True), *b"EN", *b"c", *b"END"]
    assert told(answer, tokens) == [1, 2, 3, 4, 4, 4, 7, 7, 7, 7]
    ending = begin(stops=("END",), logprobs=True)
    assert told(ending, [*b"aEN", END]) == [1, 1, 1, 4]
    assert told(begin(), list(b"a")) == [None]


def test_a_marker_is_told_as_it_is_written() -> None:
    answer = begin(logprobs=True)
    (chunk,) = answer.chunks(KEY, 256, position(b""))
    assert chunk.logprobs == position(b"<t>")
    (chunk,) = answer.chunks(KEY, 65, position(b"A"))
    assert chunk.logprobs == position(b"A")
