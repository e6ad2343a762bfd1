"""Whatever a model says once a call is open: it is a call of a declared tool, and can be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pronk.protocol.messages.generation import ToolChoice
from pronk.workers.conversation.formats.description import Syntax
from pronk.workers.conversation.formats.said import Call, Content
from pronk.workers.conversation.formats.writing import write_answer
from pronk.workers.inference.guiding.maker import Wish
from support.constrained import DEMO
from support.guided import (
    FORMATS,
    OPENINGS,
    REQUIRED,
    TOOLS,
    Led,
    calls_in,
    parse,
    tool,
    write_model,
)


@pytest.fixture(scope="module", params=["demo", "random"])
def led(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Led]:
    path: Path = DEMO
    if request.param == "random":
        path = tmp_path_factory.mktemp("models") / "random.gguf"
        write_model(path)
    led = Led.open(path)
    yield led
    led.model.close()


def assert_conforms(call: Call) -> None:
    """That a call is one of `TOOLS`, with arguments by its schema."""
    assert call.name in ("weather", "now")
    if call.name == "now":
        assert call.arguments == {}
        return
    arguments = call.arguments
    assert set(arguments) <= {"unit", "days", "places", "exact"}
    assert arguments["unit"] in ("c", "f")
    assert isinstance(arguments["exact"], bool)
    if "days" in arguments:
        assert type(arguments["days"]) is int
    if "places" in arguments:
        assert isinstance(arguments["places"], list)


@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_that_must_call_begins_with_calls(led: Led, name: str) -> None:
    for seed in range(8):
        text = led.text(led.walk(led.guide(name, REQUIRED), seed))
        said = parse(name, text)
        assert isinstance(said[0], Call), text
        for call in calls_in(said):
            assert_conforms(call)


@pytest.mark.parametrize("name", OPENINGS)
def test_a_call_that_the_model_opens_can_be_read(led: Led, name: str) -> None:
    for opening in OPENINGS[name]:
        for seed in range(8):
            text = led.text(led.walk(led.guide(name), seed, led.tokens(opening)))
            calls = calls_in(parse(name, text))
            assert calls, text
            assert_conforms(calls[0])


@pytest.mark.parametrize("name", OPENINGS)
def test_it_is_known_however_its_marker_was_cut_into_tokens(led: Led, name: str) -> None:
    table = led.maker._table(FORMATS[name])
    for opening in OPENINGS[name]:
        spelled = table.spell(opening.encode())
        assert spelled
        text = led.text(led.walk(led.guide(name), 1, spelled))
        calls = calls_in(parse(name, text))
        assert calls, text
        assert_conforms(calls[0])


def test_only_the_tool_that_was_named_can_be_called(led: Led) -> None:
    wish = Wish(TOOLS, ToolChoice.NAMED, "now")
    for seed in range(5):
        text = led.text(led.walk(led.guide("listed", wish), seed))
        assert {call.name for call in calls_in(parse("listed", text))} == {"now"}


def test_where_calls_are_not_wanted_none_is_opened(led: Led) -> None:
    for name, openings in OPENINGS.items():
        guide = led.guide(name, Wish(TOOLS, ToolChoice.NONE))
        table = led.maker._table(FORMATS[name])
        *start, last = table.spell(openings[0].partition("\n")[0].encode()) or []
        if name == "harmony":
            continue
        while start and not led.forbidden(guide):
            guide.accept(start.pop(0))
        assert led.forbidden(guide), (name, last)


def test_free_text_is_free(led: Led) -> None:
    text = 'A [list] of {things}: <b>one</b> "two" (three), a < b > c, [TOOL, <tool. '
    for name in FORMATS:
        guide = led.guide(name)
        for token in led.tokens(text):
            assert not guide.masks
            guide.accept(token)


def test_no_token_reaches_beyond_a_marker_into_what_is_no_call(led: Led) -> None:
    table = led.maker._table(FORMATS["nested"])
    for name, text in (("nested", "so <call"), ("bare", '{"name'), ("marked", "<tool_call")):
        guide = led.guide(name)
        for token in table.spell(text.encode()) or []:
            guide.accept(token)
        last = ">" if name != "bare" else '"'
        reaching = {p for p in led.pieces if p.startswith(last.encode()) and len(p) > 1}
        wrong = {p for p in reaching if p[1:2] not in b"{ \n\r\t:"}
        assert wrong <= led.forbidden(guide)
        assert last.encode() not in led.forbidden(guide)


def test_a_marker_does_not_slip_into_a_value(led: Led) -> None:
    tools = [tool("f", {"properties": {"text": {"type": "string"}}, "required": ["text"]})]
    guide = led.guide("marked", Wish(tools))
    text = '<tool_call>{"name": "f", "arguments": {"text": "so'
    for token in led.tokens(text):
        guide.accept(token)
    assert b"</tool_call>" in led.forbidden(guide)
    assert b'"' not in led.forbidden(guide)
    for token in led.tokens('"}}'):
        guide.accept(token)
    assert b"</tool_call>" not in led.forbidden(guide)


def test_a_marker_ends_a_value_without_quotes(led: Led) -> None:
    tools = [tool("f", {"properties": {"text": {"type": "string"}}, "required": ["text"]})]
    guide = led.guide("tagged", Wish(tools))
    for token in led.tokens("<tool_call>\n<function=f>\n<parameter=text>\nso"):
        guide.accept(token)
    for token in led.tokens("</parameter>"):
        assert led.pieces[token] not in led.forbidden(guide)
        guide.accept(token)
    assert b"x" in led.forbidden(guide)


def test_a_second_call_can_follow(led: Led) -> None:
    guide = led.guide("marked")
    first = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for token in led.tokens(f"{first} and "):
        guide.accept(token)
    assert not guide.masks
    for token in led.tokens("<tool_call>"):
        guide.accept(token)
    assert guide.masks
    assert b"x" in led.forbidden(guide)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "harmony"])
def test_what_a_template_writes_the_model_may_write(led: Led, name: str) -> None:
    weather = {"unit": "c", "days": 3, "places": ["a", "b"], "exact": True}
    calls = [Call("weather", weather, "aB3dE6gH9"), Call("now", {}, "Zz2Yy4Xx6")]
    form = FORMATS[name]
    assert form.calls
    if form.calls.syntax is Syntax.PYTHON:
        del weather["places"]  # texts in lists have double quotes
    if not form.calls.several:
        calls.pop()
    guide = led.guide(name)
    before: list[int] = []
    for token in led.tokens(write_answer(form, calls=calls)):
        assert led.pieces[token] not in led.forbidden(guide), led.text(before)
        guide.accept(token)
        before.append(token)
    for token in led.maker._table(form).spell(b"\n") or []:
        guide.accept(token)
    assert not guide.masks


NAMES = st.one_of(
    st.text("abcXYZ_019.- \"'\\{}<>:|é漢\n", min_size=1, max_size=12),
    st.sampled_from(["f", "get weather", 'say "hi"', "a:b", "x}", "</call>"]),
).filter(lambda name: name.strip())

VALUES = st.recursive(
    st.sampled_from(
        [
            *({"type": "integer", "minimum": 0, "maximum": 99}, {"type": "boolean"}),
            *({"enum": ["a", "b c"]}, {"enum": [1, None, "x"]}, {"const": 'q"\\'}),
            *({"type": "string", "maxLength": 4}, {"type": "null"}, {"type": ["null", "integer"]}),
            *({"type": "string", "pattern": "^[a-c]{2}$"}, {"type": "string", "format": "date"}),
            *({"not": {"type": "string"}}, {"type": "array", "uniqueItems": True, "maxItems": 1}),
            {"$ref": "#/$defs/there"},
        ]
    ),
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 2}, inner),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=2)),
        st.builds(
            lambda properties: {"type": "object", "properties": properties},
            st.dictionaries(st.text('ab"\\<é', max_size=3), inner, max_size=2),
        ),
    ),
    max_leaves=4,
)


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    keys = st.text('abc_-$ "<>=é', min_size=1, max_size=5)
    properties = draw(st.dictionaries(keys, VALUES, max_size=3))
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if properties:
        schema["required"] = draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
    schema["$defs"] = {"there": {"type": "boolean"}}
    return schema


@given(
    tools=st.lists(st.builds(tool, NAMES, schemas()), min_size=1, max_size=3),
    name=st.sampled_from(sorted(FORMATS)),
    seed=st.integers(0, 2**31),
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_calls_of_any_tools_can_be_read(
    led: Led, tools: list[dict[str, Any]], name: str, seed: int
) -> None:
    tools.append(tool("last", None))  # one that every format can write
    text = led.text(led.walk(led.guide(name, Wish(tools, ToolChoice.REQUIRED, think=False)), seed))
    said = parse(name, text, tools)
    assert isinstance(said[0], Call), text
    assert said[0].name in {each["function"]["name"] for each in tools}
    declared = {each["function"]["name"]: each["function"]["parameters"] for each in tools}
    parameters = declared[said[0].name]
    if parameters is not None:
        assert set(said[0].arguments) <= set(parameters["properties"])
    json.dumps(said[0].arguments)


def test_text_behind_calls_is_content(led: Led) -> None:
    guide = led.guide("marked")
    text = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\nDone. [x]'
    for token in led.tokens(text):
        guide.accept(token)
    assert not guide.masks
    assert parse("marked", text)[-1] == Content("Done. [x]")
