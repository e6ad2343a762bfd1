"""From conversations to prompts: beginning tokens, contexts, and what a Modelfile says first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.workers.conversation.opening import Opening
from support.prompts import (
    Characters,
    chat,
    completion,
    message,
    prompt,
    user,
)


def test_chats_and_completions_go_through_the_template() -> None:
    assert prompt(chat(message("system", "S"), user("U"))) == "s:S;u:U;"
    assert prompt(completion("P")) == "u:P;"
    assert prompt(completion("P", system="S")) == "s:S;u:P;"


def test_raw_prompts_do_not() -> None:
    assert prompt(completion("P", raw=True, system="S"), source=None) == "P"


def test_without_a_template_chats_are_refused_with_a_way_out() -> None:
    for body in (chat(user("U")), completion("P")):
        with pytest.raises(PronkError, match="raw") as caught:
            prompt(body, source=None)
        assert caught.value.code is Code.INVALID_REQUEST


def test_the_beginning_token_comes_once() -> None:
    assert prompt(completion("P", raw=True), tokenizer=Characters("^")) == "^P"
    assert prompt(completion("^P", raw=True), tokenizer=Characters("^")) == "^P"
    assert prompt(completion("P"), source="^{{ messages[0].content }}") == "^P"


def test_an_earlier_context_stands_before_the_prompt() -> None:
    body = completion("P", raw=True, context=[ord("^"), ord("A")])
    assert prompt(body, tokenizer=Characters("^")) == "^AP"


def test_tokens_that_the_model_does_not_have_are_refused() -> None:
    with pytest.raises(PronkError, match="context") as caught:
        prompt(completion("P", raw=True, context=[Characters.size]))
    assert caught.value.code is Code.INVALID_REQUEST


def test_an_empty_prompt_is_refused_unless_there_is_a_beginning() -> None:
    assert prompt(completion("", raw=True), tokenizer=Characters("^")) == "^"
    with pytest.raises(PronkError, match="empty"):
        prompt(completion("", raw=True))


def test_a_prompt_leaves_room_for_one_token() -> None:
    assert len(prompt(completion("x" * 9, raw=True), 10)) == 9
    with pytest.raises(PronkError, match=r"10 tokens, but the context holds 10; .*num_ctx"):
        prompt(completion("x" * 10, raw=True, truncate=False), 10)


@pytest.mark.parametrize("suffix", ["", "y"])
def test_hopeless_prompts_are_not_even_tokenized(suffix: str) -> None:
    body = completion("x" * 1_000_000, raw=not suffix, suffix=suffix, truncate=False)
    tokenizer = Characters(infill="<|>")
    with pytest.raises(PronkError, match=r"at least 25000[01] tokens"):
        prompt(body, 100, tokenizer=tokenizer)
    assert tokenizer.most == 0


OPENING = Opening("M", (user("q"), message("assistant", "a")))


def test_a_chat_begins_with_the_models_system_message_and_its_examples() -> None:
    assert prompt(chat(user("U")), opening=OPENING) == "s:M;u:q;a:a;u:U;"
    assert prompt(chat(user("U")), opening=Opening("M")) == "s:M;u:U;"
    assert prompt(chat(user("U")), opening=Opening("", OPENING.messages)) == "u:q;a:a;u:U;"


def test_a_chats_own_system_message_takes_the_place_of_the_models() -> None:
    own = [message("system", "S"), user("U")]
    assert prompt(chat(*own), opening=OPENING) == "s:S;u:q;a:a;u:U;"
    # Only the first message counts, as with Ollama, and an empty one is one.
    assert prompt(chat(*reversed(own)), opening=Opening("M")) == "s:M;u:U;s:S;"
    assert prompt(chat(message("system", ""), user("U")), opening=Opening("M")) == "s:;u:U;"


def test_a_prompt_begins_with_the_models_system_message_and_its_examples() -> None:
    assert prompt(completion("P"), opening=OPENING) == "s:M;u:q;a:a;u:P;"
    assert prompt(completion("P", system="S"), opening=OPENING) == "s:S;u:q;a:a;u:P;"
    assert prompt(completion("P", system=""), opening=OPENING) == "s:M;u:q;a:a;u:P;"


def test_behind_an_earlier_context_the_examples_are_not_repeated() -> None:
    body = completion("P", context=[ord("A")])
    assert prompt(body, opening=OPENING) == "As:M;u:P;"


def test_raw_prompts_and_gaps_have_nothing_of_it() -> None:
    assert prompt(completion("P", raw=True), opening=OPENING) == "P"
    gap = completion("a", suffix="b")
    assert prompt(gap, tokenizer=Characters(infill="<|>"), opening=OPENING) == "<a|b>"
    source = "{{ system }}|{{ prompt }}|{{ suffix }}|{{ messages | length }}"
    assert prompt(replace(gap, template=source), opening=OPENING) == "|a|b|1"


def test_a_requests_template_is_given_the_models_opening() -> None:
    source = "{{ system }}|{{ prompt }}|{{ messages | map(attribute='content') | join(',') }}"
    body = completion("P", template=source)
    assert prompt(body, opening=OPENING) == "M|P|M,q,a,P"
    assert prompt(replace(body, system="S"), opening=OPENING) == "S|P|S,q,a,P"


def test_the_models_examples_are_the_first_to_go() -> None:
    body = chat(user("one"), message("assistant", "two"), user("three"))
    whole = "s:M;u:q;a:a;u:one;a:two;u:three;"
    assert prompt(body, len(whole) + 1, opening=OPENING) == whole
    assert prompt(body, len(whole), opening=OPENING) == "s:M;u:one;a:two;u:three;"
    assert prompt(body, 14, opening=OPENING) == "s:M;u:three;"
    with pytest.raises(PronkError, match="num_ctx"):
        prompt(replace(body, truncate=False), len(whole), opening=OPENING)
