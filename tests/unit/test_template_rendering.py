"""Templates of strangers make texts of conversations, or errors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.workers.conversation.choice import choose_template
from pronk.workers.conversation.template import RequestTemplate
from support.prompts import (
    PLAIN,
    Characters,
    completion,
    message,
    prompt,
    template,
    user,
)


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
