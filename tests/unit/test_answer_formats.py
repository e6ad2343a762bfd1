"""Formats are read from templates alone, and bring back what the templates write."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pronk.workers.conversation.formats.check import check_template
from pronk.workers.conversation.formats.derive import derive
from pronk.workers.conversation.formats.description import (
    Format,
    Markers,
    Parameter,
    Reasoning,
    Syntax,
)
from pronk.workers.conversation.formats.probing import FIRST, Probing
from pronk.workers.conversation.formats.roundtrip import CASES, Outcome, round_trip
from pronk.workers.conversation.jinja import Complaint
from pronk.workers.conversation.rendering import JinjaRendering
from pronk.workers.conversation.template import ChatTemplate
from pronk.workers.conversation.traits import TAKES_ALL
from support.answers import BY_NAME, form_of, renderings, renderings_of
from support.chat_templates import WAYS, Family

SYNTAXES = {
    "hermes": Syntax.OBJECT,
    "content in parts": Syntax.OBJECT,
    "function object": Syntax.OBJECT,
    "list with ids": Syntax.OBJECT,
    "name, id, arguments": Syntax.NAMED,
    "bare object": Syntax.OBJECT,
    "bare list": Syntax.OBJECT,
    "name in tag": Syntax.NAMED,
    "numbered": Syntax.NAMED,
    "fenced": Syntax.NAMED,
    "tagged": Syntax.TAGGED,
    "keys and values": Syntax.TAGGED,
    "typed parameters": Syntax.TAGGED,
    "actions": Syntax.OBJECT,
    "python list": Syntax.PYTHON,
    "bare python": Syntax.PYTHON,
    "python lines": Syntax.PYTHON,
    "name as key": Syntax.OBJECT,
    "code block": Syntax.OBJECT,
    "calls first": Syntax.PYTHON,
    "id before name": Syntax.NAMED,
    "answer in tags": Syntax.NAMED,
    "object around all": Syntax.OBJECT,
    "quoted texts": Syntax.TAGGED,
    "asked in words": None,
    "recipients": Syntax.NAMED,
    "prompt thinks": Syntax.OBJECT,
    "latest reasoning": Syntax.OBJECT,
    "brackets": Syntax.NAMED,
    "prose thoughts": None,
    "instructed": Syntax.OBJECT,
    "plain": None,
    "alternating": None,
    "go chatml": Syntax.OBJECT,
    "go list": Syntax.OBJECT,
    "go bare": Syntax.OBJECT,
}
"""What each template was written to be."""


@pytest.mark.parametrize("family", WAYS, ids=lambda family: family.name)
def test_what_a_template_writes_comes_back_in_pieces_of_every_size(family: Family):
    results = round_trip(form_of(family.name), *renderings(family.name))
    assert [each.case for each in results] == [case.name for case in CASES]
    assert not [each for each in results if each.outcome is Outcome.FAILED]
    left_out = {each.case for each in results if each.outcome is Outcome.LEFT_OUT}
    assert left_out == family.left_out


@pytest.mark.parametrize("name", SYNTAXES)
def test_the_syntax_of_calls_is_recognized(name: str):
    calls = form_of(name).calls
    assert (calls and calls.syntax) == SYNTAXES[name]


@pytest.mark.parametrize("family", WAYS, ids=lambda family: family.name)
def test_a_format_is_plain_data(family: Family):
    form = form_of(family.name)
    assert Format.from_json(json.loads(json.dumps(form.to_json()))) == form


def test_a_round_trip_tells_a_wrong_format():
    form = form_of("hermes")
    assert form.calls
    wrong = replace(form, calls=replace(form.calls, each=Markers("<call>", "</call>")))
    failed = [each for each in round_trip(wrong, *renderings("hermes")) if each.outcome == "failed"]
    assert {each.case for each in failed} >= {"one call", "two calls", "a call after text"}
    assert "in pieces of 1: Content" in failed[0].reason


def test_an_object_in_tags():
    form = form_of("hermes")
    assert form.reasoning == Reasoning("<think>\n", "\n</think>\n\n", switchable=True)
    assert form.calls
    assert form.calls.each == Markers("<tool_call>\n", "\n</tool_call>")
    assert (form.calls.name, form.calls.arguments) == (("name",), ("arguments",))
    assert form.capabilities == ("tools", "thinking")
    assert form.end == "<|over|>"
    assert form.mixed


def test_content_may_have_to_come_in_parts():
    assert form_of("content in parts") == form_of("hermes")


def test_an_object_within_an_object_with_arguments_as_text():
    calls = form_of("function object").calls
    assert calls
    assert calls.name == ("function", "name")
    assert calls.arguments == ("function", "arguments")
    assert calls.id == ("id",)
    assert calls.textual
    assert calls.constants == (("type", "function"),)


def test_a_list_is_no_part_of_the_markers():
    calls = form_of("list with ids").calls
    assert calls
    assert calls.listed
    assert calls.section.start == "[TOOL_CALLS]"
    assert calls.id == ("id",)


def test_ids_and_numbers_between_name_and_arguments():
    calls = form_of("name, id, arguments").calls
    assert calls
    assert (calls.fields, calls.between) == (("name", "id"), ("[CALL_ID]", "[ARGS]"))
    calls = form_of("numbered").calls
    assert calls
    assert (calls.fields, calls.between) == (("name", "index"), (":", "<|call_argument_begin|>"))
    assert calls.each.start == "<|call_begin|>functions."
    assert calls.section == Markers("<|calls_begin|>", "<|calls_end|>")


def test_ids_and_numbers_before_the_name():
    calls = form_of("id before name").calls
    assert calls
    assert (calls.fields, calls.between) == (("id", "index", "name"), (" number=", " name=", ">"))
    assert calls.each == Markers("<call id=", "</call>")


def test_text_and_calls_within_the_same_markers():
    form = form_of("answer in tags")
    assert form.content == Markers("<answer>\n", "</answer>")
    assert form.calls
    assert form.calls.section == Markers("<tool_calls>", "</tool_calls>\n")


def test_parameters_in_tags():
    calls = form_of("tagged").calls
    assert calls
    assert calls.parameter == Parameter("<parameter=", ">\n", "\n</parameter>\n")
    assert calls.each == Markers("<tool_call>\n<function=", "</function>\n</tool_call>")
    assert calls.between == (">\n",)
    calls = form_of("typed parameters").calls
    assert calls
    assert calls.parameter
    assert calls.parameter.middle == '" string="true">'
    assert calls.parameter.middle_of("integer") == '" string="false">'


def test_text_between_markers():
    form = form_of("actions")
    assert form.content == Markers("<|START_RESPONSE|>", "<|END_RESPONSE|>")
    assert form.reasoning
    assert (form.reasoning.start, form.reasoning.end) == ("<|START_THINKING|>", "<|END_THINKING|>")
    assert not form.mixed


def test_a_marker_that_the_prompt_begins():
    form = form_of("recipients")
    assert form.lead == ">>>"
    assert form.content.start == ">>>all\n"
    assert form.calls
    assert form.calls.each.start == ">>>"


def test_when_the_prompt_opens_the_reasoning():
    always, asked = form_of("prompt thinks"), form_of("latest reasoning")
    assert always.reasoning
    assert always.reasoning.opens == ("default", "on", "off")
    assert not always.reasoning.switchable
    assert asked.reasoning
    assert asked.reasoning.opens == ("default", "on")
    assert asked.reasoning.switchable
    assert asked.opened_by("<|turn|>model\n<think>\n")
    assert not asked.opened_by("<|turn|>model\n<think></think>")
    assert not form_of("plain").opened_by("<think>")


def test_a_template_that_only_tells_the_model_what_to_do():
    form = form_of("instructed")
    assert form.calls
    assert not form.calls.rendered
    assert form.calls.section.start == "<|tool_call|>"
    assert form.content == Markers("<response>", "</response>")
    assert form.capabilities == ("tools", "thinking")


def test_one_call_at_a_time_is_noticed():
    calls = form_of("bare object").calls
    assert calls
    assert not calls.several


def test_tools_that_a_template_does_not_show_are_no_capability():
    assert form_of("fenced").calls
    assert form_of("fenced").capabilities == ("thinking",)
    assert form_of("plain").capabilities == ()


def test_a_template_that_refuses_everything_has_no_format():
    assert derive(*renderings_of("{{ raise_exception('never') }}")) == Format()
    assert check_template({"source": "{{ raise_exception('never') }}"}) == {"broken": "never"}


def test_a_template_is_rendered_a_bounded_number_of_times():
    template = ChatTemplate(BY_NAME["hermes"].source, bos="", eos="")
    count = 0

    def counting(*arguments: Any, **options: Any) -> str:
        nonlocal count
        count += 1
        return template.text(*arguments, **options)

    derive(JinjaRendering(counting, TAKES_ALL))
    assert 5 < count <= 64

    def moody(*arguments: Any, **options: Any) -> str:
        raise Complaint("no")

    probing = Probing(JinjaRendering(moody, TAKES_ALL))
    assert probing.prompt() is None
    assert probing.answer(calls=(FIRST,)) is None


def test_markers_name_what_has_to_be_seen_as_text():
    markers = form_of("numbered").markers
    assert {"<|calls_begin|>", "<|call_begin|>functions.", "<|call_end|>"} <= set(markers)
    assert "<|channel|>" in Format(harmony=True).markers


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(WAYS),
    st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 9), st.sampled_from("<{[ '\"}")), max_size=3
    ),
)
def test_whatever_a_template_is_there_is_an_answer(
    family: Family, changes: list[tuple[float, int, str]]
):
    source = family.source
    for place, length, new in changes:
        start = int(place * len(source))
        source = source[:start] + new + source[start + length :]
    said = json.loads(json.dumps(check_template({"source": source})))
    if "broken" not in said:
        again = Format.from_json(said["format"]).to_json()
        assert json.loads(json.dumps(again)) == said["format"]


# gpt-oss

CHANNELS = """\
{{- '<|start|>system<|message|>Valid channels: analysis, commentary, final.' }}
{%- if tools %}{{ tools | tojson }}{% endif %}{{- reasoning_effort or 'medium' }}{{- '<|end|>' }}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- if m.thinking %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}
{%- if m.tool_calls %}{%- set f = m.tool_calls[0].function %}
{{- '<|start|>assistant to=functions.' + f.name + '<|channel|>commentary json<|message|>' }}
{{- f.arguments | tojson + '<|call|>' }}
{%- else %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}{% endif %}
{%- else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""


def test_messages_on_channels():
    ways = renderings_of(CHANNELS)
    form = derive(*ways)
    assert form.harmony
    assert form.capabilities == ("tools", "thinking")
    assert form.reasoning
    assert form.reasoning.levels
    outcomes = {each.case: each.outcome for each in round_trip(form, *ways)}
    passed = {case for case, outcome in outcomes.items() if outcome is Outcome.PASSED}
    assert passed == {
        "text",
        "one call",
        "nested arguments and unicode",
        "a call without arguments",
        "reasoning before text",
        "reasoning before a call",
    }
    assert Outcome.FAILED not in outcomes.values()
