"""Whatever schemas tools have: a request is served, in bounded time, with what can be enforced."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.generation import ToolChoice
from pronk.workers.conversation.formats.said import Call
from pronk.workers.inference.guiding import maker
from pronk.workers.inference.guiding.endless import is_endless
from pronk.workers.inference.guiding.maker import Wish
from pronk.workers.inference.guiding.tools import ANY_OBJECT, read_tools
from support.constrained import DEMO
from support.guided import FORMATS, TOOLS, Led, parse, tool

PARAMETERS = TOOLS[0]["function"]["parameters"]
_DEEP = '{"type": "object", "properties": {"a": '


@pytest.fixture(scope="module")
def led() -> Iterator[Led]:
    led = Led.open(DEMO)
    yield led
    led.model.close()


def properties(count: int, **schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": schema for i in range(count)}}


HOSTILE = {
    "no type": {"properties": {"a": {}}},
    "of another kind": [1, 2],
    "wrong types": {"type": "foo", "properties": 5, "required": 7},
    "wrong values": {"properties": {"a": 7, "b": {"type": "nothing"}}},
    "what is required is not there": {"properties": {"a": {}}, "required": ["b"]},
    "unsatisfiable": {"properties": {"a": {"enum": []}}, "required": ["a"]},
    "circle": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "properties": {"x": {"$ref": "#/$defs/a"}},
    },
    "endless": {
        "properties": {"x": {"$ref": "#/$defs/a"}},
        "$defs": {
            "a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}
        },
    },
    "itself": {"type": "object", "properties": {"x": {"$ref": "#"}}},
    "elsewhere": {"properties": {"x": {"$ref": "http://127.0.0.1/x"}}},
    "unsupported": {
        "properties": {"x": {"not": {"type": "string"}}, "y": {"uniqueItems": True}},
        "dependentRequired": {"x": ["y"]},
    },
    "look-ahead": {"properties": {"x": {"type": "string", "pattern": "(?=a)b"}}},
    "own options": {"x-guidance": {"lenient": False, "whitespace_pattern": " +"}, "properties": {}},
    "deep": json.loads(_DEEP * 80 + "{}" + "}}" * 80),
    "a megabyte": properties(8000, type="string", description="x" * 100),
    "a megabyte of choices": {"properties": {"e": {"enum": [f"v {i}" for i in range(60_000)]}}},
    "a product": {
        "type": "object",
        "allOf": [
            {"oneOf": [{"required": ["a"]}, {"properties": {f"b{i}": {"const": i}}}]}
            for i in range(30)
        ],
    },
}


@pytest.mark.parametrize("name", ["marked", "tagged", "python", "textual"])
@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_schema_does_no_harm(led: Led, hostile: str, name: str) -> None:
    tools = [tool("strange", HOSTILE[hostile]), tool("now", None)]
    guide = led.guide(name, Wish(tools, ToolChoice.REQUIRED, think=False))
    for seed in range(2):
        said = parse(name, led.text(led.walk(guide, seed)), tools)
        assert isinstance(said[0], Call)
        assert said[0].name in ("strange", "now")
        guide = led.guide(name, Wish(tools, ToolChoice.REQUIRED, think=False))
    # The other one keeps its schema.
    named = Wish(tools, ToolChoice.NAMED, "now")
    said = parse(name, led.text(led.walk(led.guide(name, named), 1)), tools)
    assert said[0] == Call("now", {})


def test_a_thousand_tools_are_told_apart(led: Led) -> None:
    tools = [tool(f"tool_{i}", PARAMETERS) for i in range(1000)]
    began = time.thread_time()
    for name in ("marked", "named", "bare python"):
        said = parse(name, led.text(led.walk(led.guide(name, Wish(tools)), 2)), tools)
        wish = Wish(tools, ToolChoice.REQUIRED, think=False)
        said = parse(name, led.text(led.walk(led.guide(name, wish), 2)), tools)
        assert isinstance(said[0], Call)
        assert said[0].name.startswith("tool_")
    assert time.thread_time() - began < 60


def test_calls_whose_grammar_takes_too_long_are_free(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = [tool(f"slow_{i}", PARAMETERS) for i in range(1000)]
    with monkeypatch.context() as patch:
        patch.setattr(maker, "COMPILE_SECONDS", 0.0)
        patch.setattr(maker, "_CHECK_SECONDS", 0.0)
        guide = led.guide("marked", Wish(tools))
    for token in led.tokens('<tool_call>\n{"name": "other", "arguments": 5'):
        assert not led.forbidden(guide)
        guide.accept(token)


@pytest.mark.parametrize("names", [[f"t{i}" for i in range(3000)], ["x" * 60_000, "y" * 60_000]])
@pytest.mark.parametrize("name", ["bare list", "bare python", "named"])
def test_calls_of_more_tools_than_can_be_looked_for_are_free(
    led: Led, name: str, names: list[str]
) -> None:
    tools = [tool(each, PARAMETERS) for each in names]
    assert not led.forbidden(led.guide(name, Wish(tools)))
    with pytest.raises(PronkError, match=r"tool_choice: .* send fewer") as caught:
        led.guide(name, Wish(tools, ToolChoice.REQUIRED))
    assert caught.value.code is Code.INVALID_REQUEST
    # One that is named is one alone.
    few = [*tools, tool("now", None)]
    wish = Wish(few, ToolChoice.NAMED, "now", think=False)
    assert parse(name, led.text(led.walk(led.guide(name, wish), 1)), few)[0] == Call("now", {})


NAMES = ['say "hi"', "get weather", "a\\b", "漢字", "new\nline", "x" * 2000, "{}", "</call>", "a:b"]


@pytest.mark.parametrize("name", FORMATS)
def test_strange_names_are_written_so_that_they_can_be_read(led: Led, name: str) -> None:
    for strange in NAMES:
        tools = [tool(strange, None), tool("now", None)]
        for seed in range(2):
            guide = led.guide(name, Wish(tools, ToolChoice.REQUIRED, think=False))
            said = parse(name, led.text(led.walk(guide, seed)), tools)
            assert isinstance(said[0], Call)
            assert said[0].name in (strange, "now")


def test_what_a_tool_takes_is_what_it_lists() -> None:
    absent, empty, any_, open_ = read_tools(
        [
            tool("absent", None),
            tool("empty", {"type": "object", "properties": {}}),
            tool("any", {}),
            tool("open", {"properties": {"a": {}}, "additionalProperties": True}),
        ]
    )
    assert absent.properties == {}
    assert empty.properties == {}
    assert any_.schema == ANY_OBJECT
    assert open_.properties is None


def test_all_schemas_together_are_bounded() -> None:
    tools = read_tools([tool(f"t{i}", properties(1000, type="string")) for i in range(60)])
    followed = [each for each in tools if each.schema != ANY_OBJECT]
    assert 10 < len(followed) < 60


def test_a_tool_may_stand_without_its_wrapping() -> None:
    (bare,) = read_tools([{"name": "f", "parameters": PARAMETERS}])
    assert bare.name == "f"
    assert bare.required == {"unit", "exact"}


@pytest.mark.parametrize(
    ("schema", "endless"),
    [
        ({"properties": {"x": {"$ref": "#"}}}, False),
        ({"properties": {"x": {"$ref": "#"}}, "required": ["x"]}, True),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}}, True),
        ({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}}, False),
        ({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}, False),
        ({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}, "minItems": 1}}}, True),
        ({"allOf": [{"$ref": "#"}]}, True),
        ({"$ref": "http://there/#"}, False),
    ],
)
def test_a_schema_that_requires_itself_is_endless(schema: Any, endless: bool) -> None:
    assert is_endless(schema) is endless
