"""From conversations to prompts: templates of strangers, truncation, beginning tokens."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.generation import ChatMessage, GenerateBody, Kind, SamplingOptions
from pronk.workers.conversation.choice import choose_template
from pronk.workers.conversation.infill import Infill
from pronk.workers.conversation.opening import NO_OPENING, Opening
from pronk.workers.conversation.prompt import build_prompt
from pronk.workers.conversation.template import ChatTemplate, RequestTemplate
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


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}.", "U."),
        ("a {%- generation -%} b {%- endgeneration %} c", "ab c"),
        (
            "{% set n = namespace(x=[]) %}{% for i in 'abc' %}{% set _ = n.x.append(i) %}"
            "{% do n.x.append(i|upper) %}{% endfor %}{% set a = n.x.pop(0) %}"
            "{{ a }}:{{ n.x | join }}",
            "a:AbBcC",
        ),
        ("{{ {'b': 'é', 'a': 1} | tojson(ensure_ascii=true) }}", '{"b": "\\u00e9", "a": 1}'),
        ("{{ {'b': 2, 'a': 1} | tojson(sort_keys=true) }}", '{"a": 1, "b": 2}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ [1] | tojson(indent=2) }}{{ [1] | tojson(2) }}", "[\n  1\n]" * 2),
        (
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}"
            "{% if i == 3 %}{% break %}{% endif %}{% endfor %}",
            "023",
        ),
        ("{{ messages[0].get('name', 'none') }}{{ tools }}{{ documents is none }}", "noneNoneTrue"),
    ],
)
def test_what_real_templates_are_written_with_is_known(source: str, text: str) -> None:
    assert template(source).render([user("U")]) == text


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


def test_threads_may_share_a_template() -> None:
    shared = template(PLAIN)
    talks = [[user("x" * length)] * length for length in range(64)]
    with ThreadPoolExecutor(4) as threads:
        rendered = list(threads.map(shared.render, talks))
    assert rendered == [f"u:{'x' * n};" * n for n in range(64)]


# --- templates of a request


def own(source: str) -> RequestTemplate:
    return RequestTemplate(source, bos="<s>", eos="</s>")


def test_a_requests_template_is_given_messages_and_their_parts() -> None:
    source = "{{ bos_token }}{{ system }}|{{ prompt }}|{{ suffix }}|{{ messages[1].content }}"
    body = completion("P\0é", system="S", suffix="X", template=source)
    assert prompt(body, source=None, tokenizer=Characters("^")) == "^S|P\0é|X|P\0é"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% if %}", "syntax error"),
        ("{{ nothing.at.all }}", "undefined"),
        ("{{ raise_exception('no such roles') }}", "it refuses this: no such roles"),
        ("{% for a in range(99999) %}{% for b in range(9) %}x{% endfor %}{% endfor %}", "fuel"),
        ("{{ 'x' * 20000000 }}", "template: "),
        (
            "{% set n = namespace(x='x' * 100) %}{% for i in range(40) %}"
            "{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x | length }}",
            "too much memory or time",
        ),
        ("{{ 'x'" + " | replace('x', 'xxxxxxxxxxxxxxxx')" * 9 + " | length }}", "too much memory"),
    ],
)
def test_a_requests_template_that_breaks_is_the_requests_fault(source: str, reason: str) -> None:
    with pytest.raises(PronkError, match=reason) as caught:
        own(source).render([user("secret words")])
    assert caught.value.code is Code.INVALID_REQUEST
    assert caught.value.message.startswith("template: ")
    assert "secret" not in caught.value.message


def test_a_requests_go_template_is_given_the_same() -> None:
    body = completion("P\0é", system="S", template="{{ .System }}|{{ .Prompt }}|{{ .Suffix }}")
    assert prompt(body, source=None, tokenizer=Characters("^")) == "^S|P\0é|<no value>"
    body = completion("P", system="S", suffix="X", template="{{ .Prompt }}|{{ .Suffix }}")
    assert prompt(body, source=None) == "P|X"
    with pytest.raises(PronkError, match=r"template: line 1: an \{\{end\}\} is missing") as caught:
        prompt(completion("P", template="{{ if .Prompt }}"))
    assert caught.value.code is Code.INVALID_REQUEST


# --- prompts


class Characters:
    """A vocabulary of characters, with or without a beginning token, written ^."""

    size = 0x110000
    longest_piece = 4
    specials = ()

    def __init__(self, bos: str | None = None, infill: str = "") -> None:
        self.bos = ord(bos) if bos else None
        self.adds_bos = bos is not None
        self.bos_text = bos or ""
        self.eos_text = "$"
        self.infill = Infill(*map(ord, infill)) if infill else None
        self.most = 0
        """Length of the longest text that was tokenized."""

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        self.most = max(self.most, len(text))
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
    opening: Opening = NO_OPENING,
) -> str:
    tokenizer = tokenizer or Characters()
    of_model = template(source) if source else None
    return "".join(map(chr, build_prompt(body, of_model, tokenizer, length, opening)))


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


# --- completions that are too long


def keeping(num_keep: int | None) -> SamplingOptions:
    return SamplingOptions(num_keep=num_keep)


LETTERS = "abcdefghijklmnopqrstuvwxyz"


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


# --- a gap to be filled in


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


# --- histories


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


# --- what the model's Modelfile says first


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


# --- which template


@pytest.mark.parametrize(
    ("of_file", "of_modelfile", "text"),
    [
        (PLAIN, None, "u:U;"),
        (PLAIN, "", "u:U;"),
        (PLAIN, "<{{ bos_token }}{{ messages[0].content }}>", "<^U>"),
        (None, "<{{ messages[0].content }}>", "<U>"),
    ],
)
def test_a_modelfiles_template_goes_before_the_files(
    of_file: str | None, of_modelfile: str | None, text: str
) -> None:
    chosen = choose_template(of_file, of_modelfile, "", bos="^", eos="$")
    assert chosen
    assert chosen.render([user("U")]) == text


def test_a_model_may_have_no_template_at_all() -> None:
    assert choose_template(None, None, "", bos="", eos="") is None
