"""From conversations to prompts: templates of strangers, truncation, beginning tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.generation import ChatMessage, GenerateBody, Kind, SamplingOptions
from pronk.workers.conversation.prompt import build_prompt
from pronk.workers.conversation.template import ChatTemplate
from support.models import CHATML


def template(source: str = CHATML) -> ChatTemplate:
    return ChatTemplate(source, bos="<s>", eos="</s>")


def message(role: str, content: str) -> ChatMessage:
    return ChatMessage(role, content)  # type: ignore[arg-type]


def user(content: str) -> ChatMessage:
    return message("user", content)


# --- templates


def test_a_conversation_is_rendered_up_to_the_assistants_turn() -> None:
    text = template().render([message("system", "Be <b>kind</b>."), user("Hi & bye")])
    assert text == (
        "<|im_start|>system\nBe <b>kind</b>.<|im_end|>\n"
        "<|im_start|>user\nHi & bye<|im_end|>\n<|im_start|>assistant\n"
    )


def test_whitespace_goes_as_hugging_face_has_it() -> None:
    source = "{% for m in messages %}\n  {% if 1 %}\n{{ m.content }}\n {% endif %}\n{% endfor %}\n"
    assert template(source).render([user("a"), user("b")]) == "a\nb\n"


def test_what_templates_call_is_there() -> None:
    source = (
        "{{ bos_token }}{{ messages[0]['content'].strip().split(' ')[-1] }}{{ eos_token }}"
        "{% if tools is not none or documents %}no{% endif %}"
        "{{ {'a': '<é>'} | tojson }}{{ strftime_now('%Y') | length }}"
        "{% if tools is iterable and tools | length > 0 %}no{% endif %}"
        "{% if messages is iterable and 'text' is iterable %}!{% endif %}"
        "{% if add_generation_prompt %}!{% endif %}"
    )
    assert template(source).render([user(" one two ")]) == '<s>two</s>{"a": "<é>"}4!!'


def test_a_templates_own_complaint_reaches_the_caller() -> None:
    source = "{{ raise_exception('Conversation roles must alternate') }}"
    with pytest.raises(PronkError, match="Conversation roles must alternate") as caught:
        template(source).render([user("a")])
    assert caught.value.code is Code.INVALID_REQUEST


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{ nothing.at.all }}",
        "{{ messages | no_such_filter }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ messages[0].content * 100000000 }}",
        "{{ strftime_now(3) }}",
        "{{ ''.__class__.__mro__ }}",
        "{% include 'x' %}",
        "{{ 'x' * 20000000 }}",
    ],
)
def test_a_template_that_breaks_is_an_error_and_nothing_worse(source: str) -> None:
    with pytest.raises(PronkError) as caught:
        template(source).render([user("secret words")])
    assert caught.value.code is Code.INTERNAL
    assert "secret" not in caught.value.message
    assert "\n" not in caught.value.message


# --- prompts


class Characters:
    """A vocabulary of characters, with or without a beginning token, written ^."""

    size = 0x110000
    longest_piece = 4

    def __init__(self, bos: str | None = None) -> None:
        self.bos = ord(bos) if bos else None
        self.adds_bos = bos is not None

    def tokenize(self, text: str) -> list[int]:
        return [ord(character) for character in text]


PLAIN = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"


def chat(*messages: ChatMessage, **changes: object) -> GenerateBody:
    return GenerateBody(Kind.CHAT, SamplingOptions(), messages=list(messages), **changes)  # type: ignore[arg-type]


def completion(prompt: str, **changes: object) -> GenerateBody:
    return GenerateBody(Kind.COMPLETION, SamplingOptions(), prompt=prompt, **changes)  # type: ignore[arg-type]


def prompt(
    body: GenerateBody,
    length: int = 1000,
    source: str | None = PLAIN,
    tokenizer: Characters | None = None,
) -> str:
    tokenizer = tokenizer or Characters()
    of_model = template(source) if source else None
    return "".join(map(chr, build_prompt(body, of_model, tokenizer, length)))


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
        prompt(completion("x" * 10, raw=True), 10)


def test_hopeless_prompts_are_not_even_tokenized() -> None:
    class Untouched(Characters):
        def tokenize(self, text: str) -> list[int]:
            raise AssertionError

    with pytest.raises(PronkError, match="at least 250000 tokens"):
        prompt(completion("x" * 1_000_000, raw=True), 100, tokenizer=Untouched())


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
