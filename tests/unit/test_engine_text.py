"""From tokens to the text that may be shown: detokenizer, stop texts, answers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pronk.protocol.errors import PronkError
from pronk.protocol.messages.generation import FinishReason
from pronk.workers.inference.answer import Answer
from pronk.workers.inference.detokenizer import Detokenizer
from pronk.workers.inference.stop import MAX_STOP_CHARACTERS, StopMatcher


def cut(data: bytes, lengths: list[int]) -> list[bytes]:
    """`data` in pieces of these lengths, the rest in one."""
    pieces = []
    for length in lengths:
        pieces.append(data[:length])
        data = data[length:]
    return [*pieces, data]


# --- detokenizer


@given(st.binary(max_size=40), st.lists(st.integers(0, 4), max_size=20))
def test_pieces_make_the_same_text_however_bytes_are_cut(data: bytes, lengths: list[int]) -> None:
    detokenizer = Detokenizer()
    text = "".join(map(detokenizer.push, cut(data, lengths))) + detokenizer.finish()
    assert text == data.decode("utf-8", "replace")


@given(st.text(max_size=20))
def test_a_character_is_shown_with_its_last_byte_and_never_in_part(text: str) -> None:
    detokenizer = Detokenizer()
    for character in text.encode("utf-8", "replace").decode():
        *before, last = (bytes([byte]) for byte in character.encode())
        assert [detokenizer.push(piece) for piece in before] == [""] * len(before)
        assert detokenizer.push(last) == character
    assert detokenizer.finish() == ""


def test_bytes_that_cannot_become_a_character_are_replaced_at_once() -> None:
    detokenizer = Detokenizer()
    assert detokenizer.push(b"\xe2\x82") == ""
    assert detokenizer.push(b"A") == "\ufffdA"
    assert detokenizer.push(b"\xff") == "\ufffd"
    assert detokenizer.push(b"\xf0\x9f") == ""
    assert detokenizer.finish() == "\ufffd"


# --- stop texts


def reference(text: str, stops: list[str]) -> tuple[str, bool]:
    """The first match to complete ends the text; of several at once, the longest."""
    for end in range(1, len(text) + 1):
        matching = [stop for stop in stops if text[:end].endswith(stop)]
        if matching:
            return text[: end - max(map(len, matching))], True
    return text, False


letters = st.text("ab", max_size=30)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


@given(letters, stop_lists, st.lists(st.integers(0, 5), max_size=10))
@example("abab", ["abc", "ba"], [1, 1, 1])
def test_stops_are_found_however_the_text_is_cut(
    text: str, stops: list[str], lengths: list[int]
) -> None:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(piece.decode()) for piece in cut(text.encode(), lengths))
    if not matcher.matched:
        shown += matcher.finish()
    assert (shown, matcher.matched) == reference(text, stops)


@given(letters, stop_lists)
def test_exactly_the_possible_beginning_of_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = matcher.push(text)
    if matcher.matched:
        return
    held = text[len(shown) :]
    assert text.startswith(shown)
    beginnings = [stop[:length] for stop in stops for length in range(1, len(stop))]
    assert len(held) == max((len(b) for b in beginnings if text.endswith(b)), default=0)


def test_nothing_follows_a_match() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("one EN") == "one "
    assert matcher.push("D two") == ""
    assert matcher.matched
    assert matcher.push("three") + matcher.finish() == ""


def test_empty_stops_do_nothing_and_too_many_are_refused() -> None:
    assert StopMatcher(["", ""]).push("text") == "text"
    with pytest.raises(PronkError, match="stop"):
        StopMatcher(["x" * MAX_STOP_CHARACTERS, "y"])


# --- answers

END = 256


class Bytes:
    """A vocabulary of bytes, and one token that ends an answer."""

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def ends_generation(self, token: int) -> bool:
        return token == END


def begin(
    limit: int = 100, stops: tuple[str, ...] = (), before: Sequence[int] = (), released: int = 0
) -> Answer:
    matcher = StopMatcher(stops)
    return Answer(Bytes(), limit=limit, stops=matcher, before=before, released=released)


def feed(into: Answer, tokens: list[int]) -> str:
    """Text of the tokens up to the one that ends the answer."""
    text = ""
    for token in tokens:
        if into.reason:
            break
        text += into.accept(token)
    return text


def test_the_ending_token_counts_and_is_not_shown() -> None:
    answer = begin()
    assert feed(answer, [*b"hi", END, *b"more"]) == "hi"
    assert answer.reason is FinishReason.STOP
    assert answer.tokens == [*b"hi", END]


def test_a_limit_ends_it_and_gives_out_what_was_held_back() -> None:
    answer = begin(limit=4, stops=("END",))
    assert feed(answer, [*b"abEN", *b"D"]) == "abEN"
    assert answer.reason is FinishReason.LENGTH


def test_a_stop_text_ends_it_before_its_first_character() -> None:
    answer = begin(stops=("END",))
    assert feed(answer, list(b"abENDc")) == "ab"
    assert answer.reason is FinishReason.STOP
    assert len(answer.tokens) == 5


def test_a_broken_character_at_the_end_is_replaced() -> None:
    assert feed(begin(), [*"€".encode()[:2], END]) == "\ufffd"


@given(
    st.lists(st.one_of(st.sampled_from(list("abé€END".encode())), st.just(END)), max_size=25),
    st.integers(0, 25),
    st.integers(1, 20),
)
def test_a_second_attempt_shows_exactly_what_the_first_did_not(
    tokens: list[int], sent: int, limit: int
) -> None:
    whole = begin(limit, ("END", "ab"))
    full_text = feed(whole, tokens)

    first = begin(limit, ("END", "ab"))
    shown = feed(first, tokens[:sent])
    second = begin(limit, ("END", "ab"), before=first.tokens, released=len(shown))
    assert second.pending == ""
    rest = feed(second, tokens[len(second.tokens) :])

    assert shown + rest == full_text
    assert (second.reason, second.tokens) == (whole.reason, whole.tokens)


@given(
    st.lists(st.sampled_from(list("abé€END".encode())), min_size=1, max_size=25),
    st.integers(1, 25),
)
def test_a_second_attempt_with_less_room_ends_with_all_text_of_the_first(
    tokens: list[int], limit: int
) -> None:
    first = begin(100, ("END", "ab€"))
    shown = feed(first, tokens)
    if first.reason:
        return
    second = begin(limit, ("END", "ab€"), before=first.tokens, released=len(shown))
    assert second.tokens == first.tokens
    if limit > len(tokens):
        assert (second.reason, second.pending) == (None, "")
    else:
        whole = bytes(tokens).decode("utf-8", "replace")
        assert (second.reason, shown + second.pending) == (FinishReason.LENGTH, whole)
