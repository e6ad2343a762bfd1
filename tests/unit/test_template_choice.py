"""Which template a model's prompts are written with, and in which language it is."""

from __future__ import annotations

import logging

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.generation import ChatMessage
from pronk.workers.conversation.choice import (
    choose_template,
    go_template,
    request_template,
)
from pronk.workers.conversation.gotemplate import GoTemplateError
from support.go_templates import families
from support.models import CHATML

USER = [ChatMessage("user", "Hi")]
GO = "{{ range .Messages }}go:{{ .Content }}{{ end }}"
JINJA = "{% for m in messages %}jinja:{{ m.content }}{% endfor %}"


def chosen(jinja: str | None, layer: str | None, renderer: str = "") -> str | None:
    template = choose_template(jinja, layer, renderer, bos="<s>", eos="</s>")
    return template.render(USER) if template else None


# --- languages


JINJA_TEMPLATES = [
    CHATML,
    "{{ prompt }}",
    "{{- messages[0].content -}}",
    "{{ range(3) }}",
    "{% if not x.y %}{% endif %}",
    "{{ bos_token }}{% for m in messages %}{{ m['role'] | upper }}{% endfor %}",
    "{%- set ns = namespace(found=false) -%}{{ ns.found }}",
    "{# {{ .Prompt }} in Ollama #}{% for m in messages %}{{ m.content }}{% endfor %}",
    "{{ raise_exception('no') }}",
    "{{ 'a' if messages else 'b' }}",
    "{{ '$x .Y' | trim }}",
    "{% raw %}{{ }}{% endraw %}",
    "{{ 'x' * 20000000 }}",
    "{% if %}",
    "{{ '" + "x" * 100_000 + "' }}",
]
GO_TEMPLATES = [
    "{{ .Prompt }}",
    "{{.System}} {{.Prompt}}",
    "{{- if .System }}{{ .System }}{{ end }}",
    "{{ range .Messages }}x{{ end }}",
    "{{ range $i, $_ := .Messages }}x{{ end }}",
    '{{ if eq .Role "user" }}x{{ end }}',
    "{{ if (and .System .Prompt) }}x{{ end }}",
    "{{ .Prompt }} writes {% if %} and {# comments #} in Jinja",
    "{{ currentDate }}",
    "no action at all",
    "",
]


@pytest.mark.parametrize("source", JINJA_TEMPLATES)
def test_jinja_is_not_taken_for_go(source: str) -> None:
    assert go_template(source) is None


@pytest.mark.parametrize("source", [*GO_TEMPLATES, *families().values()])
def test_go_is_not_taken_for_jinja(source: str) -> None:
    assert go_template(source)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x{{ else if not .Tools }}x{{ end }}", "stands outside"),
        ("{{ if .System }}", "an {{end}} is missing"),
        ("{{ .Prompt }}{{ summary .Messages }}", "there is no function summary"),
        ("{{ .Prompt }", "has no meaning"),
        ("{{ range $i, $m := messages }}{{ end }}", "there is no function messages"),
        ("{{ .Prompt }}" + " " * 100_000, "more than 65536 characters"),
    ],
)
def test_go_with_a_mistake_is_still_go(source: str, reason: str) -> None:
    with pytest.raises(GoTemplateError, match=reason):
        go_template(source)


def test_telling_them_apart_takes_no_longer_for_a_strange_source() -> None:
    for source in ("{{" + " " * 10**6, "{{ " * 10**5, "{{-" + "( " * 10**5, "{{a .b" * 10**4):
        assert go_template(source) is None


# --- the choice


def test_the_layer_goes_before_the_ggufs_template() -> None:
    assert chosen(JINJA, GO) == "go:Hi"
    assert chosen(None, GO) == "go:Hi"
    assert chosen("{{ messages }}", JINJA) == "jinja:Hi"


def test_without_a_layer_the_ggufs_template_is_used() -> None:
    for layer in (None, "", " \n"):
        assert chosen(JINJA, layer) == "jinja:Hi"
        assert chosen(None, layer) is None
        assert chosen("", layer) is None


def test_a_layer_beside_a_renderer_is_a_placeholder() -> None:
    assert chosen(JINJA, "{{ .Prompt }}", "some-renderer") == "jinja:Hi"
    assert chosen(None, "{{ .Prompt }}", "some-renderer") == "Hi"
    assert chosen(JINJA, None, "some-renderer") == "jinja:Hi"


@pytest.mark.parametrize("broken", ["{{ if .System }}", "{% if %}"])
def test_a_layer_that_cannot_be_read_gives_way_or_fails_the_load(
    broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert chosen(JINJA, broken) == "jinja:Hi"
    assert "TEMPLATE cannot be used" in caplog.text
    with pytest.raises(PronkError, match="the model's TEMPLATE cannot be used: ") as caught:
        chosen(None, broken)
    assert caught.value.code is Code.LOAD_FAILED


def test_a_go_template_that_fails_is_the_models_fault_and_tells_nothing() -> None:
    source = "{{ range .Messages }}{{ .Content.X }}{{ end }}{{ .Suffix.X }}"
    template = choose_template(None, source, "", bos="", eos="")
    assert template
    for attempt in (
        lambda: template.render([ChatMessage("user", "secret")]),
        lambda: template.fill("secret", "secret"),
    ):
        with pytest.raises(PronkError, match="chat template failed: line 1: string has") as caught:
            attempt()
        assert caught.value.code is Code.INTERNAL
        assert "secret" not in caught.value.message


# --- a request's template


def test_a_requests_template_may_be_in_either_language() -> None:
    parts = {"system": "S", "prompt": "P", "suffix": ""}
    messages = [ChatMessage("system", "S"), ChatMessage("user", "P")]
    for source in ("{{ .System }}:{{ .Prompt }}!", "{{ system }}:{{ prompt }}!"):
        assert request_template(source, bos="", eos="").render(messages, **parts) == "S:P!"
    parts["suffix"] = "X"
    for source in ("{{ .Prompt }}_{{ .Suffix }}", "{{ prompt }}_{{ suffix }}"):
        assert request_template(source, bos="", eos="").render(messages, **parts) == "P_X"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ if .System }}", "line 1: an {{end}} is missing"),
        ("\n{{ .Prompt.X }}", "line 2: string has no field X"),
        ("{{ range 1000000000 }}{{ $ }}{{ end }}", "too many steps|writes far more"),
        ('{{ $x := "x" }}{{ range 60 }}{{ $x = print $x $x }}{{ end }}', "too much memory"),
        ('{{ printf "%1000000000s" .Prompt }}', "too large"),
    ],
)
def test_a_requests_go_template_that_breaks_is_the_requests_fault(source: str, reason: str) -> None:
    with pytest.raises(PronkError, match=reason) as caught:
        request_template(source, bos="", eos="").render([ChatMessage("user", "secret")])
    assert caught.value.code is Code.INVALID_REQUEST
    assert caught.value.message.startswith("template: ")
    assert "secret" not in caught.value.message
