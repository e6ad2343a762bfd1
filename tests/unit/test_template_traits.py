"""What templates of several kinds take, and what becomes of conversations that they do not take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronk.protocol.errors import Code, PronkError
from pronk.workers.conversation.analysis import analyse
from pronk.workers.conversation.go_chat import Think
from pronk.workers.conversation.template import ChatTemplate
from pronk.workers.conversation.traits import TAKES_ALL, Traits, adapted
from pronk.workers.conversation.turns import Turn
from support import templates

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def call(city: str, **more: Any) -> dict[str, Any]:
    return {"function": {"name": "weather", "arguments": {"city": city}}, **more}


def user(text: str) -> Turn:
    return Turn("user", text)


def said(text: str, *calls: dict[str, Any], thinking: str = "") -> Turn:
    return Turn("assistant", text, thinking, calls)


def result(text: str, **more: str) -> Turn:
    return Turn("tool", text, **more)


def system(text: str) -> Turn:
    return Turn("system", text)


def traits_of(source: str) -> Traits:
    return Traits(**analyse(source)["traits"])


def rendered(
    source: str, turns: Sequence[Turn], *, tools: Sequence[Any] = (), think: Think = None
) -> str:
    template = ChatTemplate(source, bos="<s>", eos="</s>", traits=traits_of(source))
    return template.render(turns, tools=tools, think=think)


# --- what they take


@pytest.mark.parametrize(
    ("source", "differing"),
    [
        (templates.TAGS, {"empty": False, "switches": True}),
        (
            templates.BRACKETS,
            {"system": "first", "alternates": True, "user_first": True, "short_ids": True}
            | {"empty": False, "system_alone": False},
        ),
        (
            templates.TURNS,
            {"system": "none", "alternates": True, "user_first": True, "empty": False}
            | {"calls": False, "results": False, "tools": False},
        ),
        (templates.HEADERS, {"single_calls": True}),
        (templates.PARAMETERS, {}),
        (templates.LISTED, {"listed_content": True, "calls": False, "tools": False}),
        (templates.TEXTUAL, {"arguments_as_text": True, "tools": False}),
        (
            templates.OPENED,
            {"calls": False, "tools": False, "opens": "<think>", "closes": "</think>"},
        ),
    ],
    ids=["tags", "brackets", "turns", "headers", "parameters", "listed", "textual", "opened"],
)
def test_what_a_template_takes_is_found_out(source: str, differing: dict[str, Any]) -> None:
    assert traits_of(source) == replace(TAKES_ALL, **differing)


def test_null_contents_are_given_where_they_change_something() -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}({{ c.function | tojson }})"
        "{% endfor %}{% if m.content is not none %}{{ m.role }}:{{ m.content }};{% endif %}"
        "{% endfor %}"
    )
    assert traits_of(source).null_content
    assert rendered(source, [user("U"), said("", call("Oslo")), result("R")]).startswith(
        'user:U;({"name": "weather", "arguments": {"city": "Oslo"}})tool:R;'
    )


# --- what becomes of conversations


def test_system_messages_go_to_the_next_user_where_there_is_no_place_for_them() -> None:
    talk = [system("S"), user("U"), said("A"), system("T"), user("V")]
    assert rendered(templates.TURNS, talk) == (
        "<s><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
        "<start_of_turn>user\nT\n\nV<end_of_turn>\n<start_of_turn>model\n"
    )
    assert rendered(templates.BRACKETS, talk) == ("<s>[INST]U[/INST]A</s>[INST]S\n\nT\n\nV[/INST]")
    assert "T<|im_end|>\n<|im_start|>user\nV" in rendered(templates.TAGS, talk)


def test_a_system_message_at_the_end_or_alone_is_a_users() -> None:
    assert adapted([user("U"), system("T")], Traits(system="first")) == [user("U"), user("T")]
    assert adapted([user("U"), system("T"), said("A")], Traits(system="none")) == [
        user("U"),
        user("T"),
        said("A"),
    ]
    assert rendered(templates.TURNS, [system("S")]).count("S<end_of_turn>") == 1
    assert rendered(templates.BRACKETS, [system("S")]) == "<s>[INST]S\n\n[/INST]"


def test_neighbours_of_one_role_are_joined_where_roles_must_alternate() -> None:
    talk = [user("U"), user("V"), said("A"), said("B"), user("W")]
    assert rendered(templates.BRACKETS, talk) == "<s>[INST]U\n\nV[/INST]A\n\nB</s>[INST]W[/INST]"
    assert rendered(templates.PARAMETERS, talk).count("<|im_end|>") == 5


def test_an_answer_without_a_question_gets_an_empty_one() -> None:
    assert (
        rendered(templates.BRACKETS, [said("A"), user("U")])
        == "<s>[INST][/INST]A</s>[INST]U[/INST]"
    )


def test_empty_conversations_are_rendered() -> None:
    for source in templates.ALL:
        assert rendered(source, []) is not None
    assert rendered(templates.TAGS, []) == ("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n")


def test_calls_and_results_become_text_where_there_is_no_place_for_them() -> None:
    talk = [user("U"), said("", call("Oslo")), result("rain", tool_name="weather")]
    assert rendered(templates.TURNS, talk) == (
        "<s><start_of_turn>user\nU<end_of_turn>\n<start_of_turn>model\n"
        '{"name": "weather", "arguments": {"city": "Oslo"}}<end_of_turn>\n'
        "<start_of_turn>user\nResult of weather:\nrain<end_of_turn>\n<start_of_turn>model\n"
    )


def test_ids_are_made_up_in_the_form_that_is_wanted() -> None:
    talk = [
        user("U"),
        said("", call("Oslo"), call("Rome", id="call_77")),
        result("dry", tool_call_id="call_77"),
        result("rain"),
    ]
    text = rendered(templates.BRACKETS, talk)
    assert '"arguments": {"city": "Oslo"}, "id": "call00000"}' in text
    assert '"arguments": {"city": "Rome"}, "id": "call00001"}' in text
    assert "[RESULT]dry of call00001[/RESULT][RESULT]rain of call00000[/RESULT]" in text
    kept = adapted(talk, TAKES_ALL)
    assert [each["id"] for each in kept[1].tool_calls] == ["call00000", "call_77"]
    assert [turn.tool_call_id for turn in kept[2:]] == ["call_77", "call00000"]
    assert {turn.tool_name for turn in kept[2:]} == {"weather"}


def test_results_without_ids_belong_to_calls_of_their_tool() -> None:
    other = {"function": {"name": "time", "arguments": {}}}
    talk = [said("", call("Oslo"), other), result("noon", tool_name="time"), result("rain")]
    changed = adapted(talk, TAKES_ALL)
    assert [(t.tool_name, t.tool_call_id) for t in changed[1:]] == [
        ("time", "call00001"),
        ("weather", "call00000"),
    ]
    lonely = adapted([result("R")], TAKES_ALL)[0]
    assert len(lonely.tool_call_id) == 9


def test_a_result_without_a_call_is_a_users_where_a_template_wants_the_call() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls"
        " %}{{ raise_exception('no call') }}{% endif %}{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %};{% endfor %}"
    )
    assert rendered(source, [user("U"), result("R")]) == "user:U;user:Result:\nR;"


def test_calls_are_written_one_by_one_where_they_have_to_be() -> None:
    talk = [user("U"), said("", call("Oslo"), call("Rome")), result("rain"), result("dry")]
    text = rendered(templates.HEADERS, talk)
    places = [text.index(word) for word in ("Oslo", "rain", "Rome", "dry")]
    assert places == sorted(places)


@pytest.mark.parametrize("arguments", [{"city": "Oslo"}, '{"city": "Oslo"}'])
def test_arguments_may_come_as_text_and_go_as_text(arguments: Any) -> None:
    talk = [
        user("U"),
        said("", {"function": {"name": "weather", "arguments": arguments}}),
        result("R"),
    ]
    assert '>>>weather\n{"city": "Oslo"}<|end|>' in rendered(templates.TEXTUAL, talk)
    assert '"arguments": {"city": "Oslo"}}' in rendered(templates.TAGS, talk)


def test_contents_are_lists_where_they_have_to_be() -> None:
    assert rendered(templates.LISTED, [user("U")]) == "<|user|>U<|end|><|assistant|>"


def test_tools_without_what_they_need_not_have_are_completed_for_templates_that_want_it() -> None:
    bare = {"type": "function", "function": {"name": "f"}}
    source = "{% for t in tools %}{{ t.function.parameters.properties.keys() | list }}{% endfor %}"
    assert rendered(source, [user("U")], tools=[bare]) == "[]"
    assert '{"name": "f"}' in rendered(templates.TAGS, [user("U")], tools=[bare])


def test_an_answer_that_was_begun_goes_on() -> None:
    for source in templates.ALL:
        text = rendered(source, [user("U"), said("It is < 3 and  ")])
        assert text.endswith("It is < 3 and  ")
        assert "U" in text
    begun = rendered(templates.TAGS, [user("U"), said("", thinking="Well,")])
    assert begun.endswith("<|im_start|>assistant\n<think>\nWell,")
    assert rendered(templates.TURNS, [user("U"), said("", thinking="Well,")]) == rendered(
        templates.TURNS, [user("U")]
    )


def test_a_call_is_not_gone_on_with() -> None:
    text = rendered(templates.TAGS, [user("U"), said("A", call("Oslo"))])
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_a_refusal_that_nothing_helps_against_reaches_the_caller_in_its_own_words() -> None:
    source = templates.TURNS.replace(
        "{{- m.content", "{{- raise_exception('no ö') if 'ö' in m.content else m.content"
    )
    with pytest.raises(PronkError, match="refuses this: no ö") as caught:
        rendered(source, [user("schön")])
    assert caught.value.code is Code.INVALID_REQUEST


def test_tools_reach_the_template_and_deep_ones_do_not() -> None:
    assert '"name": "weather"' in rendered(templates.TAGS, [user("U")], tools=[WEATHER])
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(PronkError, match="nested") as caught:
        rendered(templates.TAGS, [user("U")], tools=[{"function": deep}])
    assert caught.value.code is Code.INVALID_REQUEST


# --- thinking


def test_thinking_is_switched_by_what_templates_look_for() -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% endfor %}|{{ enable_thinking }}|{{ thinking }}"
        "|{{ reasoning_effort }}"
    )
    assert rendered(source, [user("U")]) == "U|||"
    assert rendered(source, [user("U")], think=True) == "U|True|True|"
    assert rendered(source, [user("U")], think="medium") == "U|True|True|medium"
    assert rendered(source, [user("U")], think="max") == "U|True|True|high"
    assert rendered(source, [user("U")], think=False) == "U|False|False|low"


def test_reasoning_that_a_prompt_begins_is_ended_where_none_is_wanted() -> None:
    assert rendered(templates.OPENED, [user("U")]).endswith("assistant\n<think>\n")
    assert rendered(templates.OPENED, [user("U")], think=True).endswith("assistant\n<think>\n")
    assert rendered(templates.OPENED, [user("U")], think=False).endswith(
        "assistant\n<think>\n\n</think>\n\n"
    )
    assert rendered(templates.TAGS, [user("U")], think=False).count("</think>") == 1


def test_known_markers_end_reasoning_where_a_template_has_no_switch() -> None:
    template = ChatTemplate(templates.TEXTUAL, bos="", eos="", traits=traits_of(templates.TEXTUAL))
    template.reasoning = ("<why>", "</why>")
    assert template.render([user("U")], think=False).endswith("<|assistant|><why>\n\n</why>\n\n")
    assert template.render([user("U")]).endswith("<|assistant|>")


# --- anything


ROLES = st.sampled_from(["system", "user", "assistant", "tool"])
KNOWN = [
    (source, traits_of(source))
    for source in templates.ALL
    if source not in (templates.HEADERS, templates.BRACKETS)  # they drop text beside calls
]


@given(st.lists(st.tuples(ROLES, st.sampled_from(["", "word"]), st.integers(0, 2)), max_size=8))
def test_every_conversation_is_rendered_and_says_all(talk: list[tuple[str, str, int]]) -> None:
    turns = [
        Turn(role, f"{word}{place}" if word else "", "", [call("Oslo")] * calls)
        if role == "assistant"
        else Turn(role, f"{word}{place}" if word else "")
        for place, (role, word, calls) in enumerate(talk)
    ]
    for source, traits in KNOWN:
        text = ChatTemplate(source, bos="<s>", eos="</s>", traits=traits).render(turns)
        assert all(turn.content in text for turn in turns)
