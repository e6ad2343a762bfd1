"""Writing Ollama's answers: the form of each line, and that its own client reads them."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import ollama
from hypothesis import given, settings
from hypothesis import strategies as st

from pronk.frontend.dialects.ollama import listings
from pronk.frontend.dialects.ollama.lines import Lines, created_at
from pronk.frontend.operations.generation import Completion, Output
from pronk.frontend.stream import Piece, Thinking
from pronk.protocol.messages.generation import (
    FinishReason,
    Kind,
    PositionLogprobs,
    TokenLogprob,
    ToolCall,
)
from pronk.protocol.messages.library import ModelDetails, ModelShown, ModelSummary
from pronk.protocol.messages.status import RunningModel

DETAILS = ModelDetails("", "gguf", "llama", ["llama"], "7.1M", "Q8_0")
COMPLETION = Completion(FinishReason.LENGTH, 100, 10, 5, 20, 6, 30, [1, 2])


@settings(deadline=None)
@given(st.lists(st.text(min_size=1)), st.sampled_from(Kind), st.text(min_size=1))
def test_every_piece_is_one_line_with_its_text(pieces: list[str], kind: Kind, model: str) -> None:
    written = Lines(kind, model).lines(Output(pieces, None))
    lines = [json.loads(line) for line in written.split(b"\n")[:-1]]
    assert written.endswith(b"\n") or not pieces
    texts = [
        line["message"]["content"] if kind is Kind.CHAT else line["response"] for line in lines
    ]
    assert texts == pieces
    assert all(line["model"] == model and line["done"] is False for line in lines)


def test_what_was_ready_at_once_has_one_time() -> None:
    lines = Lines(Kind.CHAT, "m").lines(Output(["a", "b", "c"], None)).splitlines()
    assert len({json.loads(line)["created_at"] for line in lines}) == 1


def test_the_last_line_carries_the_accounts_and_no_text() -> None:
    first, last = Lines(Kind.COMPLETION, "m").lines(Output(["a"], COMPLETION)).splitlines()
    assert b"eval" not in first
    assert b"duration" not in first
    assert last.split(b'"response"')[1] == (
        b':"","done":true,"done_reason":"length","context":[1,2],"total_duration":100,'
        b'"load_duration":10,"prompt_eval_count":5,"prompt_eval_duration":20,"eval_count":6,'
        b'"eval_duration":30}'
    )


def test_without_a_context_there_is_no_such_field() -> None:
    last = json.loads(Lines(Kind.CHAT, "m").whole("hi", replace(COMPLETION, context=None)))
    assert "context" not in last
    assert last["message"] == {"role": "assistant", "content": "hi"}


def test_created_at_is_rfc_3339_in_utc() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", created_at())


def test_times_that_no_calendar_holds_are_never() -> None:
    for moment in (1e300, 1e18, 1e12, -1e18):
        assert listings.timestamp(moment) == listings.NEVER
    assert listings.timestamp(0.25) == "1970-01-01T00:00:00.250000Z"


def test_ollamas_own_client_reads_what_is_written() -> None:
    for kind, shape in (
        (Kind.CHAT, ollama.ChatResponse),
        (Kind.COMPLETION, ollama.GenerateResponse),
    ):
        lines = Lines(kind, "demo")
        for line in (lines.whole("hi", COMPLETION), lines.notice("load")):
            assert shape.model_validate_json(line).done is True
    listed = listings.tags([ModelSummary("demo:latest", "d" * 64, 9, 1.5e9, DETAILS)])
    assert ollama.ListResponse(**listed).models[0].size == 9
    loaded = listings.ps([RunningModel("demo:latest", "d" * 64, 9, 0, 4096, None, DETAILS)])
    assert ollama.ProcessResponse(**loaded).models[0].context_length == 4096
    shown = listings.show(
        ModelShown(
            call="0" * 32,
            modelfile="FROM demo",
            parameters="",
            template="t",
            system="",
            license="MIT",
            details=DETAILS,
            model_info={"general.architecture": "llama"},
            capabilities=["completion"],
            modified_at=1.5e9,
        )
    )
    assert ollama.ShowResponse(**shown).capabilities == ["completion"]
    assert list(shown) == [
        *("license", "modelfile", "template", "details", "model_info"),
        *("capabilities", "modified_at"),
    ]


# --- thinking and calls

CALLS = [ToolCall("get weather", {"city": "Köln", "days": [1, 2.5, None]}, "c1")]


def test_thinking_and_calls_stand_beside_an_empty_text() -> None:
    pieces: list[Piece] = [Thinking("hm"), "Let me see.", CALLS, [ToolCall("f", {})]]
    chat = [
        json.loads(line)["message"]
        for line in Lines(Kind.CHAT, "m").lines(Output(pieces, None, mixed=True)).splitlines()
    ]
    function = {"index": 0, "name": "get weather", "arguments": CALLS[0].arguments}
    assert chat == [
        {"role": "assistant", "content": "", "thinking": "hm"},
        {"role": "assistant", "content": "Let me see."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "function": function}],
        },
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"index": 1, "name": "f", "arguments": {}}}],
        },
    ]
    text = Lines(Kind.COMPLETION, "m").lines(Output(pieces[:2], None, mixed=True))
    first, second = map(json.loads, text.splitlines())
    assert (first["response"], first["thinking"], first["done"]) == ("", "hm", False)
    assert (second["response"], "thinking" in second) == ("Let me see.", False)


@settings(deadline=None)
@given(st.lists(st.text(min_size=1) | st.text(min_size=1).map(Thinking)), st.sampled_from(Kind))
def test_pieces_that_may_be_anything_are_a_line_each(pieces: list[Piece], kind: Kind) -> None:
    written = Lines(kind, "m").lines(Output(pieces, None, mixed=True))
    told: list[Piece] = []
    for line in map(json.loads, written.splitlines()):
        said = line["message"] if kind is Kind.CHAT else line
        text = said["content"] if kind is Kind.CHAT else line["response"]
        told.append(Thinking(said["thinking"]) if "thinking" in said else text)
        assert line["done"] is False
    assert told == pieces


def test_a_whole_answer_has_all_of_it_and_the_reason_stays() -> None:
    completion = replace(COMPLETION, reason=FinishReason.STOP, context=None)
    whole = Lines(Kind.CHAT, "m").whole("b", completion, thinking="a", calls=CALLS * 2)
    answer = json.loads(whole)
    assert list(answer["message"]) == ["role", "content", "thinking", "tool_calls"]
    assert [call["function"]["index"] for call in answer["message"]["tool_calls"]] == [0, 1]
    assert answer["done_reason"] == "stop"
    read = ollama.ChatResponse.model_validate_json(whole).message
    assert (read.content, read.thinking) == ("b", "a")
    assert read.tool_calls
    assert read.tool_calls[0].function.arguments == CALLS[0].arguments
    generated = Lines(Kind.COMPLETION, "m").whole("b", completion, thinking="a")
    assert ollama.GenerateResponse.model_validate_json(generated).thinking == "a"


def test_log_probabilities_come_with_pieces_of_any_kind() -> None:
    told = [PositionLogprobs(TokenLogprob(b"hm", -0.5), [])]
    output = Output([Thinking("hm"), CALLS, ""], None, [told, told, told], mixed=True)
    for line in map(json.loads, Lines(Kind.CHAT, "m").lines(output).splitlines()):
        assert [each["token"] for each in line["logprobs"]] == ["hm"]
