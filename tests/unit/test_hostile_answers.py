"""Answers that are made to be hard to read: nothing hangs, nothing is lost, nothing waits."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pronk.workers.conversation.formats.derive import derive
from pronk.workers.conversation.formats.description import Format
from pronk.workers.conversation.formats.parser import AnswerParser
from pronk.workers.conversation.formats.reader import LONGEST
from pronk.workers.conversation.formats.said import Call, Content, Said, Thinking, joined
from pronk.workers.conversation.formats.writing import write_answer
from support.answers import BY_NAME, form_of, renderings_of
from support.chat_templates import Family

REAL = ("gemma-4", "glm-4-9b", "functionary-v2", "solar-open", "muse", "kimi-k3")
FORMS = {name: form_of(name) for name in [*BY_NAME, "harmony"]} | {
    name: derive(*renderings_of(Family(name, folder="families").source)) for name in REAL
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALLS = [Call("f", {"a": "x", "b": [1, {"c": None}]}, "123456789"), Call("f", {}, "abcdefghi")]
_SPACE = 64


def read(form: Format, text: str, size: int = 1) -> list[Said]:
    parser = AnswerParser(form, tools=[TOOL])
    said: list[Said] = []
    for at in range(0, len(text), size):
        said += parser.push(text[at : at + size])
    return joined(said + parser.finish())


def written(form: Format) -> str:
    """An answer with two calls, as the format has it."""
    if form.harmony:
        start = "<|channel|>commentary to=functions.f<|message|>"
        return f'{start}{{"a": "x", "b": [1, {{"c": null}}]}}<|call|><|start|>assistant{start}{{}}'
    return write_answer(form, calls=CALLS if form.calls and form.calls.several else CALLS[:1])


# Nothing waits longer than it may become a marker


def matters(form: Format) -> list[str]:
    """The texts for which a parser may wait, without their white space."""
    texts = [*form.markers, written(form), "f{"]
    if form.calls and form.calls.listed and not form.calls.is_announced:
        texts += ["[f("]
    return ["".join(text.split()) for text in texts]


WORDS = ["a", "Hi", " ", "\n", "  ", ",", ".", "1", "ff", "x f"]


@st.composite
def beginnings(draw: st.DrawFn) -> tuple[str, str]:
    """A format, and words among beginnings of its markers that go on otherwise."""
    name = draw(st.sampled_from(sorted(FORMS)))
    form = FORMS[name]
    markers = [marker for marker in form.markers if len(marker) > 1] or ["<"]
    cut = st.tuples(st.sampled_from(markers), st.integers(1, 30)).map(
        lambda it: it[0][: min(it[1], len(it[0]) - 1)] + "~"
    )
    return name, "".join(draw(st.lists(st.sampled_from(WORDS) | cut, max_size=12)))


@settings(max_examples=300, deadline=None)
@given(beginnings())
def test_what_is_held_back_is_the_beginning_of_something_that_matters(answer: tuple[str, str]):
    name, text = answer
    form = FORMS[name]
    if any(marker in text for marker in form.markers if not marker.isspace()):
        return  # a short marker within a longer one
    parser = AnswerParser(replace(form, lead=""), tools=[TOOL])
    told = ""
    known = matters(form)
    for end in range(1, len(text) + 1):
        told += "".join(
            part.text for part in parser.push(text[end - 1]) if isinstance(part, Content)
        )
        held = text[len(told) : end]
        assert text.startswith(told)
        bare = "".join(held.split())
        assert any(marker.startswith(bare) for marker in known), (held, known)
        assert len(held) - len(held.lstrip()) <= _SPACE


# Nothing is lost


def unfinished(form: Format) -> Iterator[str]:
    """Answers that never become what they begin as."""
    whole = written(form)
    start = whole[: whole.find("f")]
    for inner in ("{", "[", "{" * 300, "[" * 300, '{"a": ' + "9" * 5000, '{"a": "\\ud800', "\0"):
        yield start + inner
        yield start + "f" + inner
    for cut in range(1, len(whole), 3):
        yield whole[:cut] + "§"


@pytest.mark.parametrize("name", sorted(FORMS))
def test_all_of_a_text_comes_out_but_markers(name: str):
    form = FORMS[name]
    if not form.calls:
        return
    markers = {part for marker in form.markers for part in marker.split()}
    markers |= {form.calls.separator.strip(), "[", "]", ","} - {""}
    pattern = re.compile("|".join(map(re.escape, sorted(markers, key=len, reverse=True))) + r"|\s")
    for text in unfinished(form):
        lead = form.lead.strip()
        said = read(form, text.removeprefix(lead))
        if any(isinstance(part, Call) for part in said):
            continue
        shown = "".join(part.text for part in said if isinstance(part, Content | Thinking))
        assert pattern.sub("", shown) == pattern.sub("", text.removeprefix(lead)), text


def test_markers_within_arguments_are_arguments():
    text = '</tool_call><tool_call>{["}\\'
    for name, form in FORMS.items():
        if form.calls and form.calls.parameter is None and not form.harmony:
            said = read(form, write_answer(form, calls=[Call("f", {"a": text})])[len(form.lead) :])
            assert [part for part in said if isinstance(part, Call)] == [
                Call("f", {"a": text}, said[0].id if isinstance(said[0], Call) else "")
            ], name


def test_markers_within_reasoning_are_reasoning():
    form = FORMS["hermes"]
    call = written(form)
    assert read(form, f"<think>{call}</think>{call}")[0] == Thinking(call.strip())


def test_odd_values():
    form = FORMS["hermes"]

    def arguments(text: str) -> Any:
        said = read(form, f'<tool_call>{{"name": "f", "arguments": {text}}}</tool_call>')
        return said[0].arguments if isinstance(said[0], Call) else None

    assert arguments('{"a": 1, "a": 2}') == {"a": 2}
    assert arguments('{"a": "\\ud800 \\u0000"}') == {"a": "� \0"}
    assert arguments('{"a": 123456789012345678901234567890}') == {"a": 1.2345678901234568e29}
    assert arguments('{"a": 1e400}') is None
    assert arguments('{"a": ' + "9" * 5000 + "}") is None


def test_a_tool_that_was_not_offered_is_still_called():
    # Whoever asked must be able to say so to the model; only what nothing announces needs a name.
    call = '{"name": "g", "arguments": {}}'
    assert read(FORMS["hermes"], f"<tool_call>{call}</tool_call>") == [Call("g", {})]
    assert read(FORMS["bare list"], f"[{call}]") == [Content(f"[{call}]")]


def test_a_call_without_end_becomes_text_at_a_bound():
    form = FORMS["hermes"]
    text = '<tool_call>{"name": "f", "arguments": {"a": "' + "x" * LONGEST
    wanted = [Content(text.removeprefix("<tool_call>"))]
    parser = AnswerParser(form)
    assert parser.push(text[:-100]) == []
    assert joined(parser.push(text[-100:] + "y")) == [Content(wanted[0].text + "y")]
    assert read(form, text, 10_007) == read(form, text, len(text)) == wanted
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert read(form, call + "x" * LONGEST, 10_007) == [Call("f", {}), Content("x" * LONGEST)]


def test_white_space_without_end_is_not_held_back():
    for form in (FORMS["hermes"], FORMS["solar-open"]):
        parser = AnswerParser(form)
        said = parser.push("a" + " " * 1000)
        assert sum(len(part.text) for part in said if isinstance(part, Content)) == 1001 - _SPACE
        said = read(form, "a" + " " * 1000 + form.markers[0], 1)
        assert said == read(form, "a" + " " * 1000 + form.markers[0], 1001)


# It takes no longer the longer it is

HOSTILE = [
    '<tool_call>{"name": ',
    '<tool_call>{"',
    "<tool_call>",
    "<think>",
    "</think>",
    "{",
    "[",
    '{"name": {',
    "[f(",
    " ",
    "<",
    "\0",
    "f\n{",
    "<tool_call><function=f><parameter=a>",
    "<|call_begin|>functions.f:0",
    "<|channel|>commentary to=functions.f<|message|>{",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_long_answer_of_beginnings_is_read_soon(text: str):
    started = time.process_time()
    for form in FORMS.values():
        parser = AnswerParser(form, tools=[TOOL])
        for _ in range(2_000 // len(text)):
            parser.push(text)
        parser.finish()
    assert time.process_time() - started < 20  # it takes a fraction of a second


@pytest.mark.parametrize("unit", ["{", "[", "9", "x", "\\", "\\ud800", " ", '"k": 1, ', "\0"])
@pytest.mark.parametrize("name", ["hermes", "harmony", "gemma-4", "python lines"])
def test_a_long_call_is_read_soon(name: str, unit: str):
    form = FORMS[name]
    whole = written(form)
    head = whole[: whole.find("{", whole.find("f")) + 1 or whole.find("(") + 1]
    parser = AnswerParser(form, tools=[TOOL])
    parser.push(head)
    started = time.process_time()
    for _ in range((1 << 17) // len(unit) // 8):
        parser.push(unit * 8)
    parser.finish()
    assert time.process_time() - started < 10  # a fraction of a second
