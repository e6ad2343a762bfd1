"""Go templates of chat models: prompts are what Go writes of them when used as Ollama uses it."""

from __future__ import annotations

from typing import Any

import pytest

from pronk.protocol.messages.generation import ChatMessage
from pronk.workers.conversation.go_chat import GoChat
from pronk.workers.conversation.gotemplate import GoTemplateError, Template
from pronk.workers.conversation.turns import Turn
from support.go_templates import families, load, stop_the_calendar

EXPECTED: dict[str, dict[str, str | None]] = load("expected.json")["families"]
CONVERSATIONS: dict[str, dict[str, Any]] = load("conversations.json")


def chat(source: str) -> GoChat:
    return GoChat(Template.parse(source))


def message(role: str, content: str) -> ChatMessage:
    return ChatMessage(role, content)  # type: ignore[arg-type]


def prompt(template: GoChat, conversation: dict[str, Any]) -> str | None:
    try:
        if "suffix" in conversation:
            return template.fill(conversation["prompt"], conversation["suffix"])
        return template.render(
            [Turn(**each) for each in conversation["messages"]],
            tools=conversation.get("tools", ()),
            think=conversation.get("think"),
        )
    except GoTemplateError:
        return None


@pytest.mark.parametrize(("name", "source"), families().items())
def test_prompts_are_those_of_go(name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_the_calendar(monkeypatch)
    template = chat(source)
    prompts = {key: prompt(template, value) for key, value in CONVERSATIONS.items()}
    assert prompts == EXPECTED[name]
    assert any(prompts.values())


def test_all_families_were_given_to_go() -> None:
    assert set(EXPECTED) == set(families())


# What follows was written by hand, so that the promise does not rest on the reference alone.


def test_messages_are_rendered_once_with_neighbours_joined() -> None:
    source = "{{ .System }}|{{ range .Messages }}{{ .Role }}:{{ .Content }};{{ end }}{{ .Prompt }}"
    text = chat(source).render(
        [
            message("system", "S"),
            message("user", "a"),
            message("user", "b"),
            message("tool", "1"),
            message("tool", "2"),
            message("system", "T"),
        ]
    )
    assert text == "S\n\nT|system:S;user:a\n\nb;tool:1;tool:2;system:T;<no value>"


def test_older_templates_are_rendered_exchange_by_exchange() -> None:
    source = "<{{ .System }}|{{ .Prompt }}|{{ .Response }}>end"
    talk = [
        message("system", "S"),
        message("user", "1"),
        message("assistant", "2"),
        message("user", "3"),
    ]
    assert chat(source).render(talk) == "<S|1|2>end<|3|"
    assert chat(source).render(talk[:3]) == "<S|1|2"
    assert chat(source).render([message("tool", "x")]) == "<||"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ .Prompt }}", "pr"),
        ("{{ .Prompt }}!", "p!r"),
        ("{{ .Prompt }}{{ .Response }}!", "pr"),
        ("{{ .Prompt }}{{ if .Response }}+{{ .Response }}!{{ end }}?", "p+r"),
        ("{{ if .Prompt }}{{ .Response }}!{{ else }}x{{ .Response }}!{{ end }}?", "r"),
        ("{{ if .System }}{{ .Response }}!{{ else }}x{{ .Response }}!{{ end }}?", "xr"),
        ("{{ if .System }}{{ .Response }}!{{ else if .Prompt }}y{{ end }}?", "y"),
        ('{{ .Prompt }}{{ printf "%s~" .Response }}!', "pr~"),
        ("{{ .Prompt }}{{ $.Response }}!", "pr"),
        ("{{ with .Prompt }}{{ . }}{{ end }}{{ .Response | print }}{{ range 3 }}x{{ end }}", "pr"),
        ("no values", "no valuesr"),
    ],
)
def test_the_last_exchange_ends_with_the_response(source: str, text: str) -> None:
    assert chat(source).render([message("user", "p"), message("assistant", "r")]) == text


@pytest.mark.parametrize(
    ("think", "text"),
    [
        (None, "false||false"),
        (False, "false||true"),
        (True, "true||true"),
        ("low", "true|low|true"),
    ],
)
def test_what_is_said_of_thinking(think: bool | str | None, text: str) -> None:
    values = "{{ .Think }}|{{ .ThinkLevel }}|{{ .IsThinkSet }}"
    talk = [message("user", "a")]
    assert chat(values + "{{ .Response }}").render(talk, think=think) == text
    assert chat(values + "{{ range .Messages }}{{ end }}").render(talk, think=think) == text
    assert chat(values).fill("a", "b", think=think) == text


def test_tools_in_the_wrong_form_are_shown_as_far_as_they_go() -> None:
    source = "{{ .Tools }}{{ range .Messages }}{{ .ToolCalls }}{{ end }}"
    properties: Any = {}
    choices: Any = {}
    items: Any = []
    for _ in range(2000):
        properties, choices, items = (
            {"properties": {"x": properties}},
            {"anyOf": [choices]},
            [items],
        )
    deep = {"properties": {"a": properties, "b": choices, "c": {"items": items}}}
    wrong: list[Any] = [
        {},
        {"function": "f", "type": 3},
        {"function": {"name": None, "description": [], "parameters": 7}},
        {"function": {"parameters": {"properties": {"a": 1, 2: {"type": {}, "enum": 3}}}}},
        {"function": {"parameters": {"$defs": {"n": 10**400, "s": "\ud800"}}}},
        {"function": {"parameters": deep, "arguments": deep}},
    ]
    for tool in wrong:
        text = chat(source).render([Turn("user", "a", tool_calls=[tool])], tools=[tool])
        assert text.startswith('[{"type":"')
        text.encode()


def test_halves_of_characters_are_mended() -> None:
    source = "{{ range .Messages }}{{ .Content }}{{ len .Content }}{{ end }}"
    assert chat(source).render([message("user", "a\ud800b\ud83d\ude00")]) == "a\ufffdb\U0001f6009"


def test_a_template_fills_gaps_if_it_mentions_the_suffix() -> None:
    assert chat("{{ .Prompt }}_{{ .Suffix }}").fills
    assert chat('{{ define "x" }}{{ .Suffix }}{{ end }}{{ template "x" . }}').fills
    assert not chat("{{ .Prompt }} Suffix").fills
    assert chat("{{ .Prompt }}_{{ .Suffix }}").fill("a", "b") == "a_b"


def test_a_long_history_is_bounded_as_a_whole() -> None:
    talk = [message("user", "x"), message("assistant", "y")] * 200
    source = "{{ .Prompt }}{{ range 5000 }}{{ end }}{{ .Response }}"
    with pytest.raises(GoTemplateError, match="too many steps"):
        chat(source).render(talk)
    with pytest.raises(GoTemplateError, match="writes far more"):
        chat('{{ printf "%100000s" .Prompt }}{{ .Response }}').render(talk)
