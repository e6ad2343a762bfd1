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
from pronk.protocol.messages.generation import FinishReason, Kind
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
