"""Reading Ollama's requests: what is accepted, what is refused, and in which words."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pronk.frontend.bodies import MAX_VALUES, parse_object
from pronk.frontend.dialects.ollama.options import Options
from pronk.frontend.dialects.ollama.requests import (
    ChatRequest,
    GenerateRequest,
    ShowRequest,
    parse,
)
from pronk.frontend.operations.prompts import check_bounds, estimate_cost, prompt_parts
from pronk.protocol.codec import decode, encode
from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.fields import MAX_IMAGE
from pronk.protocol.messages.generation import (
    ChatMessage,
    GenerateBody,
    Kind,
    SamplingOptions,
    ToolCall,
)

# What the JSON parser can return: longer integers come as floats, and infinities not at all.
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)
FIELDS = st.sampled_from(
    [
        *("model", "name", "messages", "prompt", "stream", "options", "keep_alive", "format"),
        *("tools", "think", "images", "context", "raw", "system", "template", "suffix", "truncate"),
    ]
)
OPTIONS = [*Options.model_fields, "unknown"]


def chat(**fields: Any) -> ChatRequest:
    return parse(ChatRequest, {"model": "demo", **fields})


def generate(**fields: Any) -> GenerateRequest:
    return parse(GenerateRequest, {"model": "demo", **fields})


def refused(read: Callable[[], object]) -> PronkError | None:
    """The error that reading ends with; None when it does not."""
    try:
        read()
    except PronkError as error:
        return error
    return None


def refusal(**fields: Any) -> str:
    with pytest.raises(PronkError) as caught:
        chat(**fields)
    assert caught.value.code is Code.INVALID_REQUEST
    return caught.value.message


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes_are_an_object_or_a_clear_refusal(body: bytes) -> None:
    error = refused(lambda: parse_object(body))
    assert error is None or error.code is Code.INVALID_REQUEST


@given(
    st.sampled_from([ChatRequest, GenerateRequest]),
    st.dictionaries(FIELDS, ANY_JSON | st.dictionaries(st.sampled_from(OPTIONS), ANY_JSON)),
)
@settings(deadline=None)
def test_any_fields_are_a_request_or_a_clear_refusal(
    kind: type[ChatRequest | GenerateRequest], fields: dict[str, Any]
) -> None:
    error = refused(lambda: parse(kind, {"model": "demo", **fields}).generation())
    if error is not None:
        assert error.code in (Code.INVALID_REQUEST, Code.NOT_IMPLEMENTED)
        assert len(error.message) < 1000


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0.0),
        ("0", 0.0),
        (-1, -1.0),
        ("-1", -1.0),
        ("-1s", -1.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        (2.5, 2.5),
        ("250ms", 0.25),
        (None, None),
    ],
)
def test_keep_alive_has_all_of_ollamas_forms(value: object, seconds: float | None) -> None:
    assert chat(keep_alive=value).keep_alive == seconds
    assert chat(keep_alive=value).unloads == (seconds == 0)


@pytest.mark.parametrize("value", ["", "soon", "5 apples", True, [], {}, "9" * 400])
def test_what_is_no_duration_is_no_keep_alive(value: object) -> None:
    assert refusal(keep_alive=value).startswith("keep_alive: ")


def test_a_role_that_does_not_exist_is_told_the_four_that_do() -> None:
    message = refusal(messages=[{"role": "user"}, {"role": "robot", "content": "x"}])
    assert message == (
        "messages[1].role: must be 'system', 'user', 'assistant' or 'tool'; got \"robot\""
    )


def test_a_history_with_tools_and_thoughts_comes_back_as_its_text() -> None:
    asked = chat(
        messages=[
            {"role": "assistant", "content": None, "thinking": "hm", "tool_calls": [{}]},
            {"role": "tool", "tool_name": "clock", "content": "noon"},
        ]
    ).generation()
    assert [(message.role, message.content) for message in asked.messages] == [
        ("assistant", ""),
        ("tool", "noon"),
    ]
    assert asked.needs == ()


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({"think": "high"}, ("thinking",)),
        ({"think": False}, ()),
        ({"images": ["aGk="]}, ("vision",)),
        ({"images": []}, ()),
        ({"suffix": "}"}, ("insert",)),
    ],
)
def test_what_a_request_needs_of_its_model_is_known(
    fields: dict[str, Any], needs: tuple[str, ...]
) -> None:
    assert generate(prompt="x", **fields).generation().needs == needs


def test_generate_with_raw_stands_alone() -> None:
    for extra in ({"system": "s"}, {"template": "t"}, {"context": [1]}):
        with pytest.raises(PronkError, match="raw mode does not support"):
            generate(prompt="x", raw=True, **extra)
    assert generate(prompt="x", raw=True).generation().return_context is False
    assert generate(prompt="x").generation().return_context is True


def test_a_gap_a_template_and_a_shift_travel() -> None:
    request = generate(prompt="a", suffix="b", shift=False).generation()
    assert (request.suffix, request.template, request.shift) == ("b", None, False)
    assert request.needs == ("insert",)
    request = generate(prompt="a", suffix="b", template="{{ prompt }}").generation()
    assert (request.template, request.shift, request.needs) == ("{{ prompt }}", True, ())
    assert chat(messages=[], shift=False).generation().shift is False
    assert not generate(suffix="b").is_empty
    assert not generate(images=["eA=="]).is_empty
    assert generate(template="{{ prompt }}").is_empty


@pytest.mark.parametrize("template", ["{{ .Prompt }}", "{{ prompt }}", "{{ if", "x"])
def test_a_template_travels_in_either_language(template: str) -> None:
    assert generate(prompt="a", template=template).generation().template == template


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (rb"\ud800", "\ufffd"),
        (rb"x\udc00y", "x\ufffdy"),
        (rb"\ud83d\ude00 \uD83D", "\U0001f600 \ufffd"),
        (rb"\ud83d\ud83d\ude00\ude00", "\ufffd\U0001f600\ufffd"),
        (rb"\\ud800 \\\udfff", "\\ud800 \\\ufffd"),
        (b"a\xffb", "a\ufffdb"),
        (b"a\xed\xa0\x80\\n", "a\ufffd\ufffd\ufffd\n"),
    ],
)
def test_text_that_is_not_quite_unicode_is_mended(body: bytes, text: str) -> None:
    assert parse_object(b'{"prompt":"%s"}' % body) == {"prompt": text}
    assert encode(GenerateBody(Kind.COMPLETION, SamplingOptions(), prompt=text))


@given(st.text(st.characters(codec=None, categories=["Cs", "Lu"]), max_size=20))
def test_whatever_python_escapes_is_read(text: str) -> None:
    read = parse_object(json.dumps({"prompt": text}).encode())["prompt"]
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert isinstance(read, str)
    assert len(read) >= len(whole)
    assert [c for c in read if c != "\ufffd"] == [c for c in whole if c != "\ufffd"]


def test_a_body_of_nothing_but_damage_is_refused() -> None:
    error = refused(lambda: parse_object(b'{"prompt":"%s"}' % (rb"\udc00" * 100_000)))
    assert error
    assert "surrogate" in error.message


def test_name_stands_in_for_model() -> None:
    assert parse(ShowRequest, {"name": "demo"}).model == "demo"
    assert parse(ShowRequest, {"name": "old", "model": "new"}).model == "new"
    for fields in ({}, {"model": None}, {"name": ""}):
        with pytest.raises(PronkError, match="model is required"):
            parse(ShowRequest, fields)


def test_a_missing_stream_streams() -> None:
    assert chat().streams
    assert chat(stream=None).streams
    assert not chat(stream=False).streams


def test_a_body_of_millions_of_empty_lists_is_refused_unparsed() -> None:
    with pytest.raises(PronkError, match="JSON values"):
        parse_object(b'{"a":[' + b"[]," * MAX_VALUES + b"[]]}")


# --- tools, thinking, images

TOOL = {
    "type": "function",
    "function": {
        "name": 'get "the" weather',
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": True,
    },
}


def test_tools_travel_as_they_were_sent() -> None:
    untyped = {"function": {"name": "f", "parameters": None}}
    asked = chat(messages=[{"role": "user"}], tools=[TOOL, untyped]).generation()
    assert asked.tools == (TOOL, {**untyped, "type": "function"})
    assert asked.needs == ("tools",)
    for nothing in (None, []):
        assert chat(tools=nothing).generation().needs == ()


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ("f", "tools: must be a list"),
        ([TOOL, "f"], "tools[1]: must be an object"),
        ([{"type": "retrieval"}], 'tools[0]: its type must be "function"'),
        ([{"type": "function"}], "tools[0]: its function must be an object with a name"),
        (
            [{"function": {"name": ""}}],
            "tools[0]: its function.name must be a text that is not empty",
        ),
        (
            [{"function": {"name": 5}}],
            "tools[0]: its function.name must be a text that is not empty",
        ),
        (
            [{"function": {"name": "f", "description": 1}}],
            "tools[0]: its function.description must",
        ),
        ([{"function": {"name": "f", "parameters": []}}], "tools[0]: its function.parameters must"),
        ([TOOL] * 5_000, "tools: at most 4096 are taken; got 5000"),
    ],
)
def test_what_is_no_tool_is_told_with_its_place(tools: object, message: str) -> None:
    assert refusal(tools=tools).startswith(message)


def test_many_tools_and_large_schemas_are_read() -> None:
    properties = {f"parameter {n}": {"type": "string", "enum": ["x" * 100]} for n in range(7_000)}
    large = {"function": {"name": "f", "parameters": {"properties": properties}}}
    asked = chat(messages=[{"role": "user"}], tools=[*[TOOL] * 1_000, large]).generation()
    assert len(json.dumps(asked.tools)) > 2**20
    check_bounds(asked)
    body = GenerateBody(Kind.CHAT, SamplingOptions(), tools=list(asked.tools))
    assert decode(encode(body)) == body


def test_schemas_that_are_too_deep_or_have_too_many_parts_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(150):
        deep = {"items": deep}
    tool = {"function": {"name": "f", "parameters": deep}}
    assert "nested deeper than 100 levels" in refusal(tools=[tool])
    wide = {"function": {"name": "f", "parameters": {str(n): {} for n in range(40_000)}}}
    asked = chat(messages=[{"role": "user"}], tools=[wide]).generation()
    with pytest.raises(PronkError, match="lists and objects, the limit is"):
        check_bounds(asked)


def test_a_history_with_calls_travels_whole() -> None:
    call = {"id": "c1", "function": {"index": 0, "name": "clock", "arguments": {"zone": None}}}
    text = {"function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
    bare = [{"function": {"name": "f"}}, {"function": {"name": "f", "arguments": ""}}]
    asked = chat(
        messages=[
            {"role": "assistant", "thinking": "hm", "tool_calls": [call, text, *bare]},
            {"role": "tool", "content": "noon", "tool_name": "clock", "tool_call_id": "c1"},
            {"role": "user", "content": None, "thinking": None, "tool_calls": None},
        ]
    ).generation()
    calls = [
        ToolCall("clock", {"zone": None}, "c1"),
        ToolCall("clock", {"zone": "UTC"}),
        ToolCall("f", {}),
        ToolCall("f", {}),
    ]
    assert asked.messages == (
        ChatMessage("assistant", "", "hm", calls),
        ChatMessage("tool", "noon", tool_name="clock", tool_call_id="c1"),
        ChatMessage("user", ""),
    )
    assert asked.needs == ()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"function": {}}, "messages[0].tool_calls[0].function.name is required"),
        (
            {"function": {"name": "f", "arguments": [1]}},
            "messages[0].tool_calls[0].function.arguments: must be an object, or the JSON text",
        ),
        (
            {"function": {"name": "f", "arguments": "{"}},
            "messages[0].tool_calls[0].function.arguments: must be an object, or the JSON text",
        ),
        (
            {"function": {"name": "f", "arguments": "[" * 5_000}},
            "messages[0].tool_calls[0].function.arguments: must be an object, or the JSON text",
        ),
        ("f", "messages[0].tool_calls[0]: "),
        ({"id": 5, "function": {"name": "f"}}, "messages[0].tool_calls[0].id: "),
    ],
)
def test_what_is_no_call_is_told_with_its_place(call: object, message: str) -> None:
    assert refusal(messages=[{"role": "assistant", "tool_calls": [call]}]).startswith(message)


@pytest.mark.parametrize("value", [True, False, "low", "medium", "high", "max", None])
def test_thinking_may_be_asked_for_or_refused(value: object) -> None:
    for asked in (
        chat(messages=[{"role": "user"}], think=value),
        generate(prompt="x", think=value),
    ):
        request = asked.generation()
        assert request.think == value
        assert type(request.think) is type(value)
        assert request.needs == (("thinking",) if value else ())


@pytest.mark.parametrize("value", ["", "extreme", "True", 0, 1, 1.0, [], {}])
def test_any_other_wish_to_think_is_refused(value: object) -> None:
    assert refusal(think=value).startswith(
        'think: must be true, false, "low", "medium", "high" or "max"; got '
    )


def test_a_reasoning_budget_travels() -> None:
    assert chat(reasoning_budget=0).generation().reasoning_budget == 0
    assert chat().generation().reasoning_budget is None
    for wrong in (-1, 1.5, "5", True):
        assert refusal(reasoning_budget=wrong).startswith("reasoning_budget: ")


@pytest.mark.parametrize(
    "text",
    ["iVBORw==", "iVBO\r\nRw==\n", "data:image/png;base64,iVBORw==", "DATA:;BASE64,iVBORw=="],
)
def test_images_are_base64(text: str) -> None:
    asked = chat(messages=[{"role": "user", "images": [text, "eA=="]}]).generation()
    assert asked.messages[0].images == [b"\x89PNG", b"x"]
    assert asked.needs == ("vision",)
    assert generate(prompt="x", images=[text]).generation().images == (b"\x89PNG",)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("iVBOR", "is not base64"),
        ("iV BO", "is not base64"),
        ("iVBORw", "is not base64"),
        ("üüüü", "is not base64"),
        ("/home/me/cat.png", "is not base64"),
        ("https://example.com/cat.png", "is not base64"),
        ("data:image/png,abc", "a data: URL must be in base64"),
        ("", "the image is empty"),
        (5, "must be base64 text"),
        (None, "must be base64 text"),
        ("A" * (MAX_IMAGE // 3 * 4 + 8), f"an image may have {MAX_IMAGE} bytes"),
    ],
)
def test_what_is_no_image_is_told_with_its_place(image: object, reason: str) -> None:
    message = refusal(messages=[{"role": "user", "images": ["eA==", image]}])
    assert message.startswith(f"messages[0].images[1]: {reason}; got ")
    assert len(message) < 200


def test_the_number_of_images_is_bounded() -> None:
    images = ["eA=="] * 1_025
    assert "at most 1024" in refusal(messages=[{"role": "user", "images": images}])
    halves = [{"role": "user", "images": images[:600]}] * 2
    with pytest.raises(PronkError, match="at most 1024 are taken in all messages"):
        check_bounds(chat(messages=halves).generation())


JSON_OBJECTS = st.dictionaries(st.text(max_size=5), ANY_JSON, max_size=4)
LOOSE_CALLS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.none() | st.text(max_size=5) | ANY_JSON,
        "function": st.fixed_dictionaries(
            {"name": st.text(max_size=5)},
            optional={
                "arguments": JSON_OBJECTS | JSON_OBJECTS.map(json.dumps) | ANY_JSON,
                "index": ANY_JSON,
            },
        ),
    },
)
LOOSE_MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "Assistant", "tool", "system"])},
    optional={
        "content": st.none() | st.text(max_size=5),
        "thinking": st.none() | st.text(max_size=5),
        "tool_calls": st.none() | st.lists(LOOSE_CALLS, max_size=3),
        "tool_name": st.none() | st.text(max_size=5),
        "tool_call_id": st.none() | st.text(max_size=5),
        "images": st.none() | st.lists(st.sampled_from(["eA==", "eA", "data:,x"]), max_size=2),
    },
)
LOOSE_TOOLS = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": st.text(max_size=5)}) | JSON_OBJECTS},
    optional={"type": st.sampled_from(["function", "", None, "other"]), "x": ANY_JSON},
)


@given(st.lists(LOOSE_MESSAGES, max_size=3), st.lists(LOOSE_TOOLS, max_size=3))
@settings(deadline=None)
def test_whatever_is_accepted_reaches_the_worker_as_it_is(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> None:
    if error := refused(lambda: chat(messages=messages, tools=tools)):
        assert error.code is Code.INVALID_REQUEST
        assert len(error.message) < 500
        return
    asked = chat(messages=messages, tools=tools).generation()
    check_bounds(asked)
    body = GenerateBody(
        Kind.CHAT, SamplingOptions(), messages=list(asked.messages), tools=list(asked.tools)
    )
    assert decode(encode(body)) == body
    parts = prompt_parts(asked)
    assert len(parts) == len(messages) + bool(tools)
    assert estimate_cost(asked, parts) > len(parts)
