"""The templates of many families: what they write is read, with no table of families anywhere."""

from __future__ import annotations

import json
from functools import cache

import pytest

from pronk.workers.conversation.analysis import analyse
from pronk.workers.conversation.formats.derive import derive
from pronk.workers.conversation.formats.description import Format, Syntax
from pronk.workers.conversation.formats.parser import AnswerParser
from pronk.workers.conversation.formats.roundtrip import CASES, Outcome, round_trip
from pronk.workers.conversation.formats.said import Call, Content, Said, Thinking, joined
from pronk.workers.conversation.template import ChatTemplate
from pronk.workers.conversation.traits import Traits
from pronk.workers.conversation.turns import Turn
from support.answers import BY_NAME, read, renderings_of
from support.chat_templates import FAMILIES, PARTLY_READ, Family

SOURCES = {family.name: family.source for family in [*FAMILIES, *PARTLY_READ]}


@cache
def form_of(name: str) -> Format:
    return derive(*renderings_of(SOURCES[name]))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_what_a_family_writes_comes_back_in_pieces_of_every_size(family: Family):
    results = round_trip(form_of(family.name), *renderings_of(family.source))
    assert not [each for each in results if each.outcome is Outcome.FAILED]
    left_out = {each.case for each in results if each.outcome is Outcome.LEFT_OUT}
    assert left_out == family.left_out
    form = form_of(family.name)
    assert Format.from_json(json.loads(json.dumps(form.to_json()))) == form


@pytest.mark.parametrize("family", PARTLY_READ, ids=lambda family: family.name)
def test_what_cannot_be_read_is_text_and_is_not_hidden(family: Family):
    results = round_trip(form_of(family.name), *renderings_of(family.source))
    assert [each.case for each in results] == [case.name for case in CASES]
    failed = {each.case for each in results if each.outcome is Outcome.FAILED}
    assert failed == PARTLY_READ[family]
    text = 'get_weather\n ```python\ntool_call(city="Lhasa")\n```'
    assert read(form_of(family.name), text) == [Content(text)]


def tool(name: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


# Calls that nothing announces but a name that was declared

LINE = 'get_weather\n{"city": "Lhasa"}'


def test_a_declared_name_at_the_beginning_of_an_answer_announces_a_call():
    form = form_of("glm-4-9b")
    assert form.calls
    assert form.calls.syntax is Syntax.NAMED
    assert not form.calls.is_announced
    tools = [tool("get_weather"), tool("get")]
    wanted = [Call("get_weather", {"city": "Lhasa"})]
    assert read(form, LINE, tools=tools) == wanted
    assert read(form, list(f"\n{LINE}"), tools=tools) == wanted
    assert read(form, "get {}", tools=tools) == [Call("get", {})]
    late = "\n" * 100 + LINE
    assert read(form, list(late), tools=tools) == read(form, late, tools=tools)
    assert read(form, late, tools=tools) == [Content("\n" * 36), *wanted]
    two = f"{LINE}<|assistant|>get\n{{}}"
    assert read(form, list(two), tools=tools) == [*wanted, Call("get", {})]


@pytest.mark.parametrize(
    "text",
    [
        f"I call {LINE}",
        "get_weather is a tool",
        "get_weather\nor not",
        'get_weather\n{"city": ',
        "get_weather\n{city}",
        "get_weather\n[1]",
        "get_weathers\n{}",
        "get_weath",
        "get_weather",
    ],
)
def test_anything_else_with_a_name_is_text(text: str):
    form = form_of("glm-4-9b")
    assert read(form, list(text), tools=[tool("get_weather")]) == [Content(text)]
    assert read(form, text, tools=[tool("get_weather")]) == [Content(text)]
    assert read(form, text) == [Content(text)]


def test_no_name_is_waited_for_behind_the_beginning():
    parser = AnswerParser(form_of("glm-4-9b"), tools=[tool("get_weather")])
    assert parser.push("So: ") == [Content("So: ")]
    assert parser.push("get_wea") == [Content("get_wea")]


# Objects with bare keys


@pytest.mark.parametrize(("name", "quote"), [("functiongemma", "<escape>"), ("gemma-4", '<|"|>')])
def test_texts_between_markers_and_bare_keys(name: str, quote: str):
    form = form_of(name)
    assert form.calls
    assert form.calls.quote == quote
    assert quote in form.markers
    start, end = form.calls.each.start, form.calls.each.end

    def calls(inner: str, tail: str = end) -> list[Said]:
        text = f"{start}f{inner}{tail}".replace("Q", quote)
        assert read(form, list(text)) == read(form, text)
        return read(form, text)

    assert calls("{}") == [Call("f", {})]
    assert calls('{a:Q} ]"\\{Q, b : [1,Q,Q,{c:null}],d:-1.5e3,"e":true}') == [
        Call("f", {"a": '} ]"\\{', "b": [1, ",", {"c": None}], "d": -1500.0, "e": True})
    ]
    assert calls("{a:Q12Q}") == [Call("f", {"a": "12"})]
    assert calls("{a:[Q1Q", "") == [Call("f", {"a": ["1"]})]
    for inner in ("{a:Q1", "{a:x}", "{a}", "{a:1 b:2}", "{a:1,,}", "{:1}", "{a:NaN}", "{a:12"):
        said = calls(inner, "" if inner in ("{a:Q1", "{a:12") else end)
        assert not [part for part in said if isinstance(part, Call)]
        assert inner.replace("Q", quote) in "".join(
            part.text for part in said if isinstance(part, Content)
        )
    assert not [part for part in calls("{a:" + "[" * 300 + "]" * 300 + "}") if part == Call]


def test_reasoning_in_a_channel_that_the_prompt_closes():
    form = form_of("gemma-4")
    assert form.reasoning
    assert form.reasoning.switchable
    assert read(form, "<|channel>thought\nHm.<channel|>Yes.") == [Thinking("Hm."), Content("Yes.")]


# Parts of an answer that have headers of their own


def test_headers_between_the_parts_of_an_answer_are_not_shown():
    text = (
        "<|think|>Hm.<|end|><|begin|>assistant<|content|>I look.<|end|><|begin|>assistant"
        "<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>f<|tool_call:args|>{}"
        "<|tool_call:end|><|calls|>"
    )
    form = form_of("solar-open")
    assert form.silent
    assert read(form, list(text)) == [Thinking("Hm."), Content("I look."), Call("f", {}, "a1")]


def test_words_between_text_and_calls_are_never_taken_away():
    source = SOURCES["granite-4"].replace("(m.content or '')", "(m.content or '') + ' I call:'")
    form = derive(*renderings_of(source))
    assert form.calls
    assert form.silent == ()
    assert read(form, "So I call: nobody.") == [Content("So I call: nobody.")]


def test_a_name_that_is_written_twice():
    form = form_of("muse")
    assert form.calls
    assert form.calls.fields == ("name", "name")


def test_a_prompt_that_ends_within_a_marker_of_several_parts():
    form = form_of("functionary-v2")
    prompt = "<|from|>user\nHi\n<|from|>assistant\n<|recipient|>"
    for text, wanted in (
        ("all\n<|content|>Hello.", [Content("Hello.")]),
        ("f\n<|content|>{}", [Call("f", {})]),
        ("Hello.", [Content("Hello.")]),
        ("f\n<|content|>{no", [Content("f{no")]),
        ("", []),
    ):
        parser = AnswerParser.behind(prompt, form)
        said = [part for character in text for part in parser.push(character)]
        assert joined(said + parser.finish()) == wanted


# What a template wants of calls


def test_a_name_that_stands_in_the_id_alone():
    found = analyse(SOURCES["kimi-k2-thinking"])
    traits = Traits(**found["traits"])
    assert traits.named_ids
    form = Format.from_json(found["format"])
    template = ChatTemplate(SOURCES["kimi-k2-thinking"], bos="", eos="", traits=traits, form=form)

    def prompt(id_: str) -> str:
        call = {"id": id_, "type": "function", "function": {"name": "f", "arguments": {}}}
        answer = Turn("tool", "3", tool_name="f", tool_call_id=id_)
        turns = [Turn("user", "?"), Turn("assistant", "", tool_calls=[call]), answer]
        return template.render(turns, tools=[tool("f")])

    assert "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>" in prompt("call_x")
    assert "Return of functions.f:0\n3" in prompt("call_x")
    assert "functions.f:7<|tool_call_argument_begin|>" in prompt("functions.f:7")


def test_a_list_of_parts_in_which_one_has_to_be():
    traits = Traits(**analyse(BY_NAME["content in parts"].source)["traits"])
    assert traits.listed_content
    assert traits.empty_part
    assert not Traits(**analyse(SOURCES["qwen3-vl"])["traits"]).empty_part


def test_text_that_a_template_writes_as_reasoning_is_said_to_be_left_out():
    results = round_trip(
        form_of("command-a-reasoning"), *renderings_of(SOURCES["command-a-reasoning"])
    )
    reasons = {each.case: each.reason for each in results}
    assert reasons["a call after text"] == "the template does not write the text, but as reasoning"
