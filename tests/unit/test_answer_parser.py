"""Answers are separated as they come: nothing of a marker is shown, and nothing is kept back."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pronk.workers.conversation.formats.description import Calls, Format, Syntax
from pronk.workers.conversation.formats.parser import AnswerParser
from pronk.workers.conversation.formats.said import Call, Content, Said, Thinking, joined
from pronk.workers.conversation.formats.writing import write_answer
from support.answers import BY_NAME, calls, form_of, read

FORMS = [*BY_NAME, "harmony"]
CALLING = [name for name in BY_NAME if form_of(name).calls]

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def steps(form: Format | str, pieces: list[str], **options: Any) -> list[list[Said]]:
    """What each piece brings, and the end."""
    parser = AnswerParser(form_of(form) if isinstance(form, str) else form, **options)
    return [*(parser.push(piece) for piece in pieces), parser.finish()]


def tool(name: str, **types: Any) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


# Nothing is kept back, nothing of a marker is shown


def test_text_comes_at_once():
    said = steps("hermes", ["Hello", ",", " how", " are you?", " 1 < 2", " [x]", " {}"])
    assert [joined(each) for each in said] == [
        [Content("Hello")],
        [Content(",")],
        [Content(" how")],
        [Content(" are you?")],
        [Content(" 1 < 2")],
        [Content(" [x]")],
        [Content(" {}")],
        [],
    ]


def test_thinking_comes_at_once():
    said = steps("hermes", ["<think>\n", "Let", " me", " see", ".\n", "</think>\n\n", "Yes", "."])
    assert said == [
        [],
        [Thinking("Let")],
        [Thinking(" me")],
        [Thinking(" see")],
        [Thinking(".")],
        [],
        [Content("Yes")],
        [Content(".")],
        [],
    ]


def test_only_what_may_be_a_marker_waits():
    said = steps("hermes", ["a <", "b", " <tool", "_", "box>", " \n", "\nc"])
    assert said == [
        [Content("a")],
        [Content(" <b")],
        [],
        [],
        [Content(" <tool_box>")],
        [],
        [Content(" \n\nc")],
        [],
    ]


def test_what_waits_is_shown_in_the_end():
    assert read("hermes", ["a", " <tool_c"]) == [Content("a <tool_c")]
    assert read("hermes", ["a", "\n"]) == [Content("a\n")]
    assert read("hermes", []) == []
    assert read("recipients", []) == []


def test_a_call_comes_when_its_object_is_whole():
    said = steps("hermes", ['<tool_call>\n{"name": "f", "arguments": {"a": 1}', "}", "\n</tool"])
    assert said == [[], [Call("f", {"a": 1})], [], []]


def test_a_bare_object_waits_only_while_it_may_be_a_call():
    said = steps("bare object", ['{"', "na", "tion", '": 1}'])
    assert list(map(joined, said[:3])) == [[], [], [Content('{"nation')]]
    assert steps("bare object", ['{"name": "Ann",', ' "age', '": 3}'])[:2] == [[], []]
    assert read("bare object", '{"name": "Ann", "age": 3}') == [
        Content('{"name": "Ann", "age": 3}')
    ]
    known = [tool("f")]
    said = steps("bare object", ['{"name":', ' "fA', "nn"], tools=known)
    assert list(map(joined, said[:2])) == [[], [Content('{"name": "fA')]]
    assert calls(read("bare object", '{"name": "f", "parameters": {}}', tools=known)) == [("f", {})]


def test_bare_python_is_a_call_only_by_its_looks():
    assert read("bare python", "see [1] and [a, b] and [f(x)]") == [
        Content("see [1] and [a, b] and [f(x)]")
    ]
    assert calls(read("bare python", '[f(a="x"), g()]')) == [("f", {"a": "x"}), ("g", {})]
    assert read("bare python", "[f()]", tools=[tool("g")]) == [Content("[f()]")]


@given(st.sampled_from(FORMS), st.text(alphabet="abc .,!?\n", max_size=60))
@example("harmony", " ")
def test_plain_words_are_content_whatever_the_format(name: str, text: str):
    form = form_of(name)
    said = read(replace(form, lead=""), text)
    assert said == ([Content(text)] if text else [])


# Reasoning


def test_reasoning_that_the_prompt_opened():
    assert read("prompt thinks", "I think.\n</think>\n\nYes.", opened=True) == [
        Thinking("I think."),
        Content("Yes."),
    ]


def test_the_end_of_a_prompt_tells_what_has_begun():
    def behind(name: str, prompt: str, text: str) -> list[Said]:
        parser = AnswerParser.behind(prompt, form_of(name))
        return joined(parser.push(text) + parser.finish())

    assert behind("latest reasoning", "model\n<think>", "a</think>b") == [
        Thinking("a"),
        Content("b"),
    ]
    assert behind("latest reasoning", "model\n<think></think>", "a") == [Content("a")]
    assert behind("latest reasoning", "model\n<think></think>", "\n\na") == [Content("a")]
    assert behind("latest reasoning", "model\nAnd", " so on.") == [Content(" so on.")]
    assert behind("recipients", "model\n>>>", "f\n{}") == [Call("f", {})]
    assert behind("recipients", "model\n>>>all\nAnd", " so on.") == [Content(" so on.")]


def test_a_model_that_opens_it_once_more():
    assert read("prompt thinks", "<think>\nI think.</think>Yes.", opened=True) == [
        Thinking("I think."),
        Content("Yes."),
    ]


def test_reasoning_without_an_end_is_thinking():
    assert read("hermes", "<think>I th") == [Thinking("I th")]
    assert read("hermes", "<think>I th</thi") == [Thinking("I th</thi")]


def test_an_end_without_a_beginning_is_not_shown():
    assert read("hermes", "</think>\n\nYes.") == [Content("Yes.")]


def test_markers_of_reasoning_within_text_are_text():
    assert read("hermes", "Write <think> or </think>.") == [Content("Write <think> or </think>.")]


def test_reasoning_between_calls():
    assert read("hermes", f"<think>a</think>{CALL}\n<think>b</think>\n{CALL} done") == [
        Thinking("a"),
        Call("f", {"a": 1}),
        Thinking("b"),
        Call("f", {"a": 1}),
        Content("done"),
    ]


def test_markers_of_calls_within_reasoning_are_thinking():
    assert read("hermes", "<think>a <tool_call> b</think>c") == [
        Thinking("a <tool_call> b"),
        Content("c"),
    ]


# Calls among text


def test_text_before_between_and_after_calls():
    assert read("hermes", f"One.\n{CALL}\nTwo.\n\n{CALL}\nThree.") == [
        Content("One."),
        Call("f", {"a": 1}),
        Content("Two."),
        Call("f", {"a": 1}),
        Content("Three."),
    ]


def test_a_section_may_be_left_out():
    text = '<|call_begin|>functions.f:0<|call_argument_begin|>{"a": 1}<|call_end|>'
    assert read("numbered", text) == [Call("f", {"a": 1})]


def test_one_object_where_a_list_is_the_rule():
    text = '[TOOL_CALLS]{"name": "f", "arguments": {}}'
    assert calls(read("list with ids", text)) == [("f", {})]


def test_white_space_in_markers_does_not_matter():
    text = "<tool_call><function=f><parameter=a>x</parameter></function></tool_call>"
    assert read("tagged", text) == [Call("f", {"a": "x"})]
    text = '<tool_call>  {"name":"f","arguments":{}}</tool_call>\n\n\n<tool_call>{"name":"g"}'
    assert calls(read("hermes", text)) == [("f", {}), ("g", {})]


def test_a_marker_that_is_only_spoken_of_is_text():
    text = "Calls begin with `<tool_call>` and end with `</tool_call>`."
    assert read("hermes", text) == [Content(text)]


def test_nothing_is_a_call_where_there_are_no_tools():
    assert read("hermes", CALL, tools=[]) == [Content(CALL)]
    assert read("bare object", '{"name": "f", "parameters": {}}', tools=[]) == [
        Content('{"name": "f", "parameters": {}}')
    ]


def test_text_behind_a_list_keeps_its_commas():
    text = '[{"name": "f", "arguments": {}}], or so'
    assert read("bare list", text) == [Call("f", {}), Content(", or so")]


def test_the_id_that_the_model_wrote():
    text = '[TOOL_CALLS]f[CALL_ID]abc123xyz[ARGS]{"a": 1}'
    assert read("name, id, arguments", text) == [Call("f", {"a": 1}, "abc123xyz")]


# Types


def test_declared_types_tell_texts_from_numbers():
    text = "<tool_call><function=f>"
    for key in ("a", "b", "c"):
        text += f"<parameter={key}>\n12\n</parameter>"
    text += "</function></tool_call>"
    tools = [tool("f", a="string", b="integer", c=["string", "null"])]
    assert calls(read("tagged", text, tools=tools)) == [("f", {"a": "12", "b": 12, "c": "12"})]
    assert calls(read("tagged", text)) == [("f", {"a": 12, "b": 12, "c": 12})]


def test_values_as_python_prints_them():
    text = (
        "<tool_call><function=f><parameter=a>True</parameter><parameter=b>{'x': None}"
        "</parameter><parameter=c>it's</parameter></function></tool_call>"
    )
    assert calls(read("tagged", text)) == [("f", {"a": True, "b": {"x": None}, "c": "it's"})]


def test_a_value_may_have_in_it_what_ends_values():
    text = (
        "<tool_call><function=f><parameter=a>\n<b></parameter> </function> x\n</parameter>\n"
        "</function></tool_call>"
    )
    assert calls(read("tagged", text)) == [("f", {"a": "<b></parameter> </function> x"})]


def test_lines_of_a_value_stay():
    text = "<tool_call><function=f><parameter=a>\n\n  x\n\n</parameter></function></tool_call>"
    assert calls(read("tagged", text)) == [("f", {"a": "\n  x\n"})]


# What is not quite right


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"a": 1,}', {"a": 1}),
        ('{"a": [1, 2,],}', {"a": [1, 2]}),
        ("{'a': 'it\\'s', 'b': True, 'c': None}", {"a": "it's", "b": True, "c": None}),
        ("{'a': \"it's\"}", {"a": "it's"}),
        ('{"a": "x\ny\tz"}', {"a": "x\ny\tz"}),
        ('{"a": "\\ud83e\\udd99", "b": "\\ud83e"}', {"a": "🦙", "b": "�"}),
    ],
)
def test_arguments_whose_meaning_is_certain_are_mended(written: str, arguments: dict[str, Any]):
    text = f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>'
    assert calls(read("hermes", text)) == [("f", arguments)]
    (call,) = read("hermes", text)
    assert json.dumps(call.arguments, ensure_ascii=False).encode()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "written",
    [
        '{"a": 1 "b": 2}',
        '{"a": "he said "hi" to me"}',
        "{a: 1}",
        '{"a": one}',
        '{"a": NaN}',
        '{"a": 01}',
        '"text"',
        "[1]",
        '{"a": ' + "[" * 300 + "]" * 300 + "}",
    ],
)
def test_arguments_that_could_mean_several_things_are_text(written: str):
    text = f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>'
    said = read("hermes", text)
    assert calls(said) == []
    shown = "".join(part.text for part in said if isinstance(part, Content))
    assert "tool_call" not in shown
    assert '"name": "f"' in shown


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "f", "arguments": {"a": [1, 2]',
        '<tool_call>{"name": "f", "arguments": {"a": [1, 2',
        '<tool_call>{"name": "f", "arguments": {"a": [1, 2\n</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": [1, 2]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": [1, 2]}}',
        '<tool_call>{"name": "f", "arguments": {"a": [1, 2]}}</tool',
    ],
)
def test_brackets_that_are_missing_at_the_end(text: str):
    said = read("hermes", text)
    if text.endswith("2"):  # it might have become 25
        assert said == [Content(text.removeprefix("<tool_call>"))]
    else:
        assert said == [Call("f", {"a": [1, 2]})]


def test_a_call_that_is_cut_off_in_a_text_is_text():
    text = CALL + '\n<tool_call>\n{"name": "f", "arguments": {"a": "Lon'
    assert read("hermes", text) == [
        Call("f", {"a": 1}),
        Content('{"name": "f", "arguments": {"a": "Lon'),
    ]
    text = "<tool_call><function=f><parameter=a>x</parameter><parameter=b>y"
    assert calls(read("tagged", text)) == []
    text = "<tool_call><function=f><parameter=a>x</parameter>"
    assert calls(read("tagged", text)) == [("f", {"a": "x"})]


def test_calls_before_a_broken_one_stay_calls():
    broken = '<tool_call>{"name": "f", "arguments": {"a" 1}}</tool_call>'
    said = read("hermes", f"{CALL}\n{broken}\n{CALL}")
    assert calls(said) == [("f", {"a": 1}), ("f", {"a": 1})]
    assert '{"a" 1}' in "".join(part.text for part in said if isinstance(part, Content))


def test_python_that_is_no_plain_call_is_text():
    for inner in ("f(g())", "f(1)", "f(**x)", "f(a=b)", "f(a=1e999)", "f(a=" + "(" * 300 + ")"):
        text = f"<|calls_start|>[{inner}]<|calls_end|>"
        said = read("python list", text)
        assert calls(said) == []
        assert inner in "".join(part.text for part in said if isinstance(part, Content))


def test_python_values():
    text = "<|calls_start|>[f(a='x', b=[1, -2.5, None, true], c={'k': (1, 2)})]<|calls_end|>"
    assert calls(read("python list", text)) == [
        ("f", {"a": "x", "b": [1, -2.5, None, True], "c": {"k": [1, 2]}})
    ]


# However it is cut

PIECES = [" ", "\n", "Hi", "{", "}", "[", "]", "(", ")", '"', "'", ",", ":", "\\", "f", "a="]
BOTH = [Call("f", {"a": "x", "b": [1, {"c": None}]}, "123456789"), Call("g_h", {}, "abcdefghi")]


@st.composite
def answers(draw: st.DrawFn) -> tuple[str, str]:
    """A format, and an answer of parts of its markers, of calls, and of other things."""
    name = draw(st.sampled_from(FORMS))
    form = form_of(name)
    whole = [*form.markers, write_answer(form, "Hi", "Hm", BOTH), write_answer(form, calls=BOTH)]
    part = st.sampled_from(PIECES) | st.sampled_from(whole)
    cut = st.tuples(st.sampled_from(whole), st.integers(0, 40)).map(lambda it: it[0][: it[1]])
    return name, "".join(draw(st.lists(part | cut, max_size=10)))


@settings(max_examples=150, deadline=None)
@given(answers(), st.data(), st.booleans(), st.sampled_from([None, [], [tool("f", a="string")]]))
@example(("harmony", "<|const<|end|><|message|>x"), None, False, None)
def test_cuts_do_not_matter(
    answer: tuple[str, str], data: st.DataObject | None, opened: bool, tools: Any
):
    name, text = answer
    if data is None:
        pieces = list(text)
    else:
        cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12).map(sorted))
        pieces = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]
    whole = read(name, text, opened=opened, tools=tools)
    assert read(name, pieces, opened=opened, tools=tools) == whole
    assert read(name, list(text), opened=opened, tools=tools) == whole


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.text("ab<>\"'\\\n🦙{}[]/", max_size=8),
    lambda values: (
        st.lists(values, max_size=3)
        | st.dictionaries(st.text("kx ", max_size=3), values, max_size=3)
    ),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["a", "b_c", "d"]), VALUES, max_size=3)
KINDS = {str: "string", bool: "boolean", int: "integer", list: "array", dict: "object"}


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(CALLING), ARGUMENTS, ARGUMENTS)
def test_any_arguments_come_back(name: str, one: dict[str, Any], other: dict[str, Any]):
    form = form_of(name)
    assert form.calls
    wanted = [Call("f", one, "123456789"), Call("g_h", other, "abcdefghi")]
    wanted = wanted if form.calls.several else wanted[:1]
    text = write_answer(form, calls=wanted).removeprefix(form.lead)
    tools = [
        tool(
            each.name,
            **{key: KINDS.get(type(value), "null") for key, value in each.arguments.items()},
        )
        for each in wanted
    ]
    said = read(form, text, tools=tools)
    assert calls(said) == [(each.name, each.arguments) for each in wanted]


# The cost of ordinary answers


def test_text_that_cannot_be_a_marker_takes_the_short_way(monkeypatch: pytest.MonkeyPatch):
    parser = AnswerParser(form_of("hermes"))
    parser.push("Well")

    def never(text: str) -> list[Said]:
        raise AssertionError(f"{text!r} was looked at closely")

    monkeypatch.setattr(parser, "_advance", never)
    for word in (",", " this", " is", " [plain]", ' {"text"}', "."):
        assert parser.push(word) == [Content(word)]


def test_an_object_with_the_name_as_its_key():
    calls_ = Calls(Syntax.OBJECT, listed=True)
    assert read(Format(calls=calls_), '[{"f": {"a": 1}}]', tools=[tool("f")]) == [
        Call("f", {"a": 1})
    ]


# Messages on channels


def test_channels():
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary"
        "<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{"a": 1}<|call|>'
    )
    assert read("harmony", text) == [Thinking("Hm."), Content("I look."), Call("f", {"a": 1})]
    assert read("harmony", "Just text.") == [Content("Just text.")]
    assert read("harmony", "<|channel|>final<|message|>Yes.<|return|>") == [Content("Yes.")]
    cut = '<|channel|>commentary to=functions.f<|message|>{"a": "x'
    assert read("harmony", cut) == [Content('{"a": "x')]
    assert read("harmony", "<|channel|>final") == []


def test_channels_come_at_once():
    pieces = ["<|channel|>", "final", "<|message|>", "Well", ",", " a <", "b"]
    said = steps("harmony", pieces)
    assert said[3:] == [[Content("Well")], [Content(",")], [Content(" a ")], [Content("<b")], []]
