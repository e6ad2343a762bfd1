"""A model whose answers are read by a parser, from a request's body to what is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pronk.protocol.messages.generation import (
    ChatMessage,
    FinishReason,
    GenerateBody,
    Kind,
    ToolCall,
    ToolChoice,
)
from pronk.workers.conversation.formats.said import Call, Content, Said, Thinking
from pronk.workers.conversation.turns import Turn, turn_of
from pronk.workers.inference.reading import Parser, Reading
from support.engines import Bench, Run
from support.models import write_reciting_model

SAID = "[hé]ab{f}"
"""What the model says whatever it is asked: each of its bytes stands once in it."""

TOOLS = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}]
TEMPLATE = (
    "{{ if .Tools }}tools:{{ len .Tools }} {{ end }}{{ if .IsThinkSet }}think:{{ .Think }}"
    "{{ .ThinkLevel }} {{ end }}{{ range .Messages }}{{ .Role }}:{{ .Thinking }}{{ .Content }}"
    "{{ range .ToolCalls }}{{ .ID }}{{ .Function.Name }}{{ .Function.Arguments }}"
    "{{ .Function.Index }}{{ end }}{{ .ToolName }}{{ .ToolCallID }};{{ end }}\n"
)


class Brackets:
    """Thinking in [brackets], the names of calls in {braces}."""

    def __init__(self) -> None:
        self._text = ""

    def push(self, text: str) -> list[Said]:
        said: list[Said] = []
        for character in text:
            self._text += character
            match self._text[0], character:
                case ("[", "]"):
                    said.append(Thinking(self._text[1:-1]))
                case ("{", "}"):
                    said.append(Call(self._text[1:-1], {}))
                case ("[" | "{", _):
                    continue
                case _:
                    said.append(Content(self._text))
            self._text = ""
        return said

    def finish(self) -> list[Said]:
        return [Content(self._text)] if self._text else []


class Noted:
    """Notes what parsers are asked for."""

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.bodies: list[GenerateBody] = []

    def begin(self, body: GenerateBody, end: str) -> Parser | None:
        self.bodies.append(body)
        self.ends.append(end)
        return Brackets() if body.think is not False else None


BenchMaker = Callable[..., Bench]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[BenchMaker]:
    made: list[Bench] = []
    path = tmp_path / "m.gguf"
    write_reciting_model(path, [SAID])

    def make(**what: Any) -> Bench:
        made.append(Bench(path, **what))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


def ask(bench: Bench, *messages: ChatMessage, **changes: Any) -> Run:
    said = [*messages, ChatMessage("user", "hi")]
    return bench.run("", kind=Kind.CHAT, raw=False, messages=said, **changes)


def said_in(run: Run) -> tuple[str, str, list[str]]:
    calls = [call.name for chunk in run.chunks for call in chunk.calls or ()]
    return "".join(chunk.thinking for chunk in run.chunks), run.text, calls


def prompt_of(bench: Bench, run: Run) -> str:
    written = bench.model.vocabulary.written
    return b"".join(map(written, run.prepared.prompt)).decode()


def test_an_answer_is_read_by_the_parser_that_its_request_gets(make: BenchMaker) -> None:
    noted = Noted()
    bench = make(reading=Reading(noted.begin))
    run = ask(bench)
    assert said_in(run) == ("hé", "ab", ["f"])
    assert run.reason is FinishReason.STOP
    assert [chunk.index for chunk in run.chunks] == list(range(len(run.tokens)))
    assert noted.ends == [prompt_of(bench, run)]
    assert noted.ends[0].endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert ask(bench, think=False).text == SAID


def test_what_is_no_conversation_is_text(make: BenchMaker) -> None:
    noted = Noted()
    bench = make(reading=Reading(noted.begin))
    assert bench.run("\n").text == SAID
    assert noted.bodies == []
    assert bench.run("hi", raw=False).text == "ab"


def test_without_a_reading_an_answer_is_text(make: BenchMaker) -> None:
    run = ask(make())
    assert said_in(run) == ("", SAID, [])


def test_an_answer_goes_on_behind_what_was_said(make: BenchMaker) -> None:
    reading = Reading(Noted().begin)
    first, second = make(reading=reading), make(reading=reading)
    whole = ask(first)
    for sent in range(len(whole.tokens)):
        came = whole.chunks[:sent]
        released = sum(len(c.thinking) + len(c.text) + len(c.calls or ()) for c in came)
        rest = ask(second, tokens=whole.tokens[:sent], released=released)
        assert rest.prepared.answer.pending_chunks(("a" * 32, 1)) == []
        before = replace(whole, chunks=came, pieces=whole.pieces[:sent])
        thinking, text, calls = (a + b for a, b in zip(said_in(before), said_in(rest), strict=True))
        assert (thinking, text, calls) == ("hé", "ab", ["f"])


# --- what a template is given


@pytest.mark.parametrize(
    ("wishes", "beginning"),
    [
        ({}, "user:"),
        ({"tools": TOOLS}, "tools:1 user:"),
        ({"tools": TOOLS, "tool_choice": ToolChoice.NONE}, "user:"),
        ({"think": True}, "think:true user:"),
        ({"think": False}, "think:false user:"),
        ({"think": "high", "tools": TOOLS * 2}, "tools:2 think:truehigh user:"),
    ],
)
def test_a_template_gets_tools_and_the_wish_to_think(
    make: BenchMaker, wishes: dict[str, Any], beginning: str
) -> None:
    bench = make(template=TEMPLATE)
    assert prompt_of(bench, ask(bench, **wishes)).startswith(beginning)


def test_a_template_gets_a_history_with_thinking_and_calls(make: BenchMaker) -> None:
    bench = make(template=TEMPLATE)
    calls = [ToolCall("clock", {"zone": "UTC"}, "c1"), ToolCall("f", {})]
    history = [
        ChatMessage("assistant", "So.", "hm", calls),
        ChatMessage("tool", "noon", tool_name="clock", tool_call_id="c1"),
    ]
    assert prompt_of(bench, ask(bench, *history)) == (
        'assistant:hmSo.c1clock{"zone":"UTC"}0f{}1;tool:noonclockc1;user:hi;\n'
    )


def test_a_message_is_a_turn_with_all_it_has() -> None:
    called = ChatMessage("assistant", "", "hm", [ToolCall("f", {"a": 1}, "c1"), ToolCall("g", {})])
    turn = turn_of(called)
    assert (turn.role, turn.content, turn.thinking) == ("assistant", "", "hm")
    assert list(turn.tool_calls) == [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "f", "arguments": {"a": 1}, "index": 0},
        },
        {"type": "function", "function": {"name": "g", "arguments": {}, "index": 1}},
    ]
    result = ChatMessage("tool", "1", tool_name="f", tool_call_id="c1")
    assert turn_of(result) == Turn("tool", "1", "", [], "f", "c1")
    assert turn_of(turn) is turn
