"""What of a prompt that is too long is kept: of completions, around gaps, of histories."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.generation import GenerateBody, SamplingOptions
from pronk.workers.conversation.choice import choose_template
from pronk.workers.conversation.prompt import build_prompt
from support.prompts import (
    LETTERS,
    PLAIN,
    Characters,
    chat,
    completion,
    message,
    prompt,
    template,
    user,
)


def keeping(num_keep: int | None) -> SamplingOptions:
    return SamplingOptions(num_keep=num_keep)


@pytest.mark.parametrize(
    ("num_keep", "expected"),
    [
        (None, "abcdvwxyz"),  # 4, and half of the other 10
        (0, "tuvwxyz"),
        (6, "abcdefwxyz"),
        (-1, "abcdefghijklm"),
        (100, "abcdefghijklm"),
    ],
)
def test_a_completion_keeps_its_beginning_and_its_end(num_keep: int | None, expected: str) -> None:
    body = completion(LETTERS, raw=True)
    body = replace(body, options=keeping(num_keep))
    assert prompt(body, 14) == expected


def test_the_beginning_token_is_kept_beside_num_keep() -> None:
    body = replace(completion(LETTERS, raw=True), options=keeping(2))
    assert prompt(body, 11, tokenizer=Characters("^")) == "^abwxyz"


def test_templates_and_contexts_are_cut_like_the_rest() -> None:
    body = completion(LETTERS, context=[ord(c) for c in "0123456789"])
    assert prompt(body, 12) == "0123xyz;"


def test_of_a_text_without_end_only_both_ends_are_read() -> None:
    tokenizer = Characters()
    text = "abcd" + "x" * 1_000_000 + "uvwxyz"
    assert prompt(completion(text, raw=True), 14, tokenizer=tokenizer) == "abcdvwxyz"
    assert tokenizer.most < 1000


@given(st.text("xyz", max_size=60), st.integers(1, 40), st.integers(-1, 50), st.booleans())
def test_a_cut_prompt_always_leaves_room(
    text: str, length: int, num_keep: int, adds_bos: bool
) -> None:
    body = replace(completion(text, raw=True), options=keeping(num_keep))
    tokenizer = Characters("^" if adds_bos else None)
    if not text and not adds_bos:
        return
    if length == 1:
        with pytest.raises(PronkError):
            prompt(body, length, tokenizer=tokenizer)
        return
    cut = prompt(body, length, tokenizer=tokenizer)
    assert 0 < len(cut) < length
    assert cut.startswith("^") is adds_bos


def test_a_suffix_is_put_behind_the_gap() -> None:
    body = completion("def f(", suffix="): pass", system="not shown")
    assert prompt(body, tokenizer=Characters("^", "<|>")) == "^<def f(|): pass>"
    assert prompt(body, source=None, tokenizer=Characters(infill="<|>")) == "<def f(|): pass>"


def test_a_gap_may_be_at_the_beginning_and_behind_a_context() -> None:
    body = completion("", suffix="end", context=[ord("A")])
    assert prompt(body, tokenizer=Characters(infill="<|>")) == "A<|end>"


def test_a_model_that_cannot_fill_in_says_so() -> None:
    with pytest.raises(PronkError, match="does not support insert") as caught:
        prompt(completion("a", suffix="b"))
    assert caught.value.code is Code.INVALID_REQUEST


FILLING = "{{ if .Suffix }}[{{ .Prompt }}_{{ .Suffix }}]{{ else }}{{ .Prompt }}{{ end }}"


def filled(body: GenerateBody, length: int = 1000, infill: str = "<|>") -> str:
    template = choose_template(PLAIN, FILLING, "", bos="", eos="")
    return "".join(map(chr, build_prompt(body, template, Characters(infill=infill), length)))


def test_a_models_template_that_knows_gaps_goes_before_its_tokens() -> None:
    assert filled(completion("a", suffix="b")) == "[a_b]"
    assert filled(completion("", suffix="b"), infill="") == "[_b]"
    assert filled(completion("a")) == "a"


def test_what_is_far_from_a_templates_gap_is_cut() -> None:
    body = completion(LETTERS, suffix=LETTERS.upper())
    assert filled(body, 56) == f"[{LETTERS}_{LETTERS.upper()}]"
    cut = filled(body, 55)
    before, behind = cut[1:-1].split("_")
    assert LETTERS.endswith(before)
    assert LETTERS.upper().startswith(behind)
    assert len(cut) <= 55 // 2 + 4
    assert len(before) >= 3 * len(behind)
    with pytest.raises(PronkError, match="55 tokens, but the context holds 55"):
        filled(replace(body, truncate=False), 55)
    with pytest.raises(PronkError, match="context holds 5"):
        filled(body, 5)


@given(st.integers(0, 3000), st.integers(1, 3000), st.integers(60, 4000))
def test_a_cut_gap_leaves_room_and_uses_what_there_is(
    before: int, behind: int, length: int
) -> None:
    text = filled(completion("x" * before, suffix="y" * behind), length)
    assert len(text) < length
    assert len(text) == before + behind + 3 or len(text) >= length // 3


def test_raw_prompts_have_their_own_gap() -> None:
    assert prompt(completion("<a|b>", suffix="b", raw=True)) == "<a|b>"


def test_what_is_far_from_the_gap_is_cut() -> None:
    body = completion(LETTERS, suffix=LETTERS.upper())
    tokenizer = Characters(infill="<|>")
    assert prompt(body, 30, tokenizer=tokenizer) == "<pqrstuvwxyz|ABC>"
    short = completion("ab", suffix=LETTERS.upper())
    assert prompt(short, 30, tokenizer=tokenizer) == "<ab|ABCDEFGHIJKL>"
    with pytest.raises(PronkError, match="55 tokens, but the context holds 30"):
        prompt(replace(body, truncate=False), 30, tokenizer=tokenizer)
    with pytest.raises(PronkError, match="context holds 4"):
        prompt(body, 4, tokenizer=tokenizer)


def test_of_endless_texts_around_a_gap_only_the_inner_ends_are_read() -> None:
    tokenizer = Characters(infill="<|>")
    body = completion("x" * 10**6 + "b", suffix="s" + "y" * 10**6)
    assert "xb|sy" in prompt(body, 30, tokenizer=tokenizer)
    assert tokenizer.most < 1000


TALK = [
    message("system", "S"),
    user("one"),
    message("assistant", "two"),
    user("three"),
    message("assistant", "four"),
    user("five"),
]


def test_what_fits_is_kept_whole() -> None:
    whole = "s:S;u:one;a:two;u:three;a:four;u:five;"
    assert prompt(chat(*TALK), len(whole) + 1) == whole


def test_the_oldest_messages_go_first_and_system_messages_never() -> None:
    assert prompt(chat(*TALK), 35) == "s:S;u:three;a:four;u:five;"
    assert prompt(chat(*TALK), 20) == "s:S;u:five;"


def test_truncation_is_off_where_the_request_says_so() -> None:
    with pytest.raises(PronkError, match="num_ctx"):
        prompt(chat(*TALK, truncate=False), 20)


def test_a_last_message_that_does_not_fit_is_refused() -> None:
    with pytest.raises(PronkError, match="11 tokens, but the context holds 8"):
        prompt(chat(*TALK), 8)


def test_templates_that_want_a_user_first_never_see_anything_else() -> None:
    source = (
        "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}" + PLAIN
    )
    talk = TALK[1:]
    for length in range(9, 60):
        assert prompt(chat(*talk), length, source).startswith("u:")


@given(
    st.lists(
        st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text("x", max_size=6)),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 80),
)
def test_truncation_keeps_the_longest_end_that_fits(
    talk: list[tuple[str, str]], length: int
) -> None:
    messages = [message(*each) for each in talk]

    def kept(start: int) -> str:
        return template(PLAIN).render(
            [m for m in messages[:start] if m.role == "system"] + messages[start:]
        )

    last = len(messages) - 1
    starts = [0, *(i for i in range(1, last) if messages[i].role == "user"), last]
    fitting = [kept(start) for start in starts if len(kept(start)) < length]
    if fitting:
        assert prompt(chat(*messages), length) == fitting[0]
    else:
        with pytest.raises(PronkError, match="num_ctx"):
            prompt(chat(*messages), length)
