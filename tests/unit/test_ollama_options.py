"""The options of a request: what Ollama takes is taken, and a mistake is named with its range."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pronk.frontend.dialects.ollama import options as module
from pronk.frontend.dialects.ollama.options import WITHOUT_EFFECT, Options, log_ignored
from pronk.frontend.dialects.ollama.requests import ChatRequest, parse
from pronk.frontend.operations.generation import GenerationRequest
from pronk.frontend.operations.offload import Offload
from pronk.protocol.codec import decode, encode
from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.generation import GenerateBody, LogitBias, SamplingOptions

DOCUMENTATION = Path(__file__).resolve().parents[2] / "docs" / "options.md"

# What the JSON parser can return: longer integers come as floats, and infinities not at all.
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=9),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=6,
)


def read(**options: Any) -> GenerationRequest:
    return parse(ChatRequest, {"model": "demo", "options": options}).generation()


def refusal(**options: Any) -> str:
    with pytest.raises(PronkError) as caught:
        read(**options)
    assert caught.value.code is Code.INVALID_REQUEST
    return caught.value.message


SAMPLING = {
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.5,
    "min_p": 0.1,
    "typical_p": 0.7,
    "top_n_sigma": 1.5,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
    "dynatemp_range": 0.3,
    "dynatemp_exponent": 2.0,
    "mirostat": 2,
    "mirostat_tau": 4.0,
    "mirostat_eta": 0.2,
    "repeat_last_n": -1,
    "repeat_penalty": 1.2,
    "presence_penalty": -0.5,
    "frequency_penalty": 0.5,
    "dry_multiplier": 0.8,
    "dry_base": 1.5,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 100,
    "dry_sequence_breakers": ["\n", "x"],
    "ignore_eos": True,
    "num_keep": 5,
    "num_predict": -2,
    "stop": ["a", "b"],
}


def test_every_option_reaches_the_worker() -> None:
    assert {*SAMPLING, "logit_bias"} == set(SamplingOptions.__dataclass_fields__)
    for name, value in SAMPLING.items():
        assert read(**{name: value}).options == SamplingOptions(**{name: value})
    assert read(**SAMPLING).options == SamplingOptions(**SAMPLING)


def test_every_option_of_ollama_has_a_place() -> None:
    request = {"num_ctx", "seed", "num_keep", "num_gpu", "main_gpu"}
    assert set(Options.model_fields) == set(SamplingOptions.__dataclass_fields__) | request | set(
        WITHOUT_EFFECT
    )


@pytest.mark.parametrize("name", sorted(Options.model_fields))
def test_null_is_absence(name: str) -> None:
    asked = read(**{name: None})
    assert asked.options == SamplingOptions()
    assert (asked.seed, asked.context_length) == (None, None)


def test_integers_may_be_written_as_whole_floats_and_numbers_as_integers() -> None:
    asked = read(num_ctx=4096.0, seed=-1, top_k=40.0, temperature=1)
    assert (asked.context_length, asked.seed) == (4096, -1)
    assert asked.options == SamplingOptions(top_k=40, temperature=1.0)


def test_what_ollama_brings_down_to_what_can_be_is_accepted() -> None:
    assert read(num_ctx=2**60).context_length == 2**24
    assert read(top_k=2**60, repeat_last_n=2**60).options.top_k == 2**60
    assert read(num_keep=-7).options.num_keep == -1
    ignored = {"num_thread": 0, "num_batch": 2**40}
    assert read(**ignored).options == SamplingOptions()
    assert read(num_gpu=2**60, main_gpu=1).offload == Offload(2**20, 1)
    assert read(num_gpu=-1, main_gpu=-1).offload == Offload()
    assert read().offload == Offload()


def test_stop_is_one_text_or_several_and_an_empty_one_is_none() -> None:
    assert read(stop="a").options.stop == ["a"]
    assert read(stop=["a", "", "b"]).options.stop == ["a", "b"]
    assert read(stop=[]).options.stop == []
    assert read(stop="x" * 1024).options.stop == ["x" * 1024]


def test_biases_have_all_of_llama_servers_forms() -> None:
    expected = [LogitBias(15, -1.5), LogitBias("Hello", None), LogitBias(7, 2.0)]
    assert read(logit_bias=[[15, -1.5], ["Hello", False], [7, 2]]).options.logit_bias == expected
    assert read(logit_bias={"15": -1.5, "Hello": False, "7": 2}).options.logit_bias == expected
    assert read(logit_bias=[["15", 1.0]]).options.logit_bias == [LogitBias("15", 1.0)]
    assert read(logit_bias=[]).options.logit_bias == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": "hot"}, 'options.temperature: must be a number from 0 to 1000; got "hot"'),
        ({"temperature": True}, "options.temperature: must be a number from 0 to 1000; got true"),
        ({"temperature": -1}, "options.temperature: must be a number from 0 to 1000; got -1"),
        ({"top_p": 7}, "options.top_p: must be a number from 0 to 1; got 7"),
        ({"min_p": -0.1}, "options.min_p: must be a number from 0 to 1; got -0.1"),
        ({"typical_p": []}, "options.typical_p: must be a number from 0 to 1; got an array"),
        ({"repeat_penalty": -2}, "options.repeat_penalty: must be a number from 0 to 100; got -2"),
        (
            {"presence_penalty": 1e3},
            "options.presence_penalty: must be a number from -100 to 100; got 1000.0",
        ),
        ({"mirostat": 3}, "options.mirostat: must be an integer from 0 to 2; got 3"),
        (
            {"num_ctx": 1.5},
            "options.num_ctx: must be an integer from 1 on, of at most 64 bits; got 1.5",
        ),
        (
            {"num_ctx": 0},
            "options.num_ctx: must be an integer from 1 on, of at most 64 bits; got 0",
        ),
        (
            {"num_predict": -3},
            "options.num_predict: must be an integer from -2 on, of at most 64 bits; got -3",
        ),
        ({"top_k": -2}, "options.top_k: must be an integer from -1 on, of at most 64 bits; got -2"),
        ({"seed": 1e300}, "options.seed: must be an integer, of at most 64 bits; got 1e+300"),
        ({"num_gpu": "all"}, 'options.num_gpu: must be an integer, of at most 64 bits; got "all"'),
        ({"use_mmap": 1}, "options.use_mmap: must be true or false; got 1"),
        ({"ignore_eos": "no"}, 'options.ignore_eos: must be true or false; got "no"'),
        ({"tfs_z": {}}, "options.tfs_z: must be a number from -1e+09 to 1e+09; got an object"),
        (
            {"stop": [1]},
            "options.stop: must be a text or a list of texts; the one at 0 is none; got an array",
        ),
        ({"stop": 5}, "options.stop: must be a text or a list of texts; got 5"),
        (
            {"stop": ["x"] * 10_000},
            "options.stop: must be at most 128 texts of at most 1024 characters, together at most "
            "16384; these are 10000, the longest with 1 characters; got an array",
        ),
        (
            {"stop": "x" * 2**20},
            "options.stop: must be at most 128 texts of at most 1024 characters, together at most "
            f'16384; these are 1, the longest with 1048576 characters; got "{"x" * 40}…"',
        ),
        (
            {"stop": ["x" * 1000] * 17},
            "options.stop: must be at most 128 texts of at most 1024 characters, together at most "
            "16384; these are 17, the longest with 1000 characters; got an array",
        ),
        (
            {"dry_sequence_breakers": ["ü" * 21]},
            "options.dry_sequence_breakers: must be at most 16 texts of at most 40 bytes, together "
            "at most 128; these are 1, the longest with 21 characters; got an array",
        ),
        (
            {"logit_bias": 3},
            'options.logit_bias: must be an object such as {"42": -1.5} or a list such as '
            "[[42, -1.5]]; got 3",
        ),
        (
            {"logit_bias": [[1, 2.0], [1]]},
            "options.logit_bias: [1] must be a token and its bias, such as [42, -1.5]; "
            "got an array",
        ),
        (
            {"logit_bias": [[-1, 2.0]]},
            "options.logit_bias: [0] must name a token by its id or by a text of at most 128 "
            "characters; got an array",
        ),
        (
            {"logit_bias": {"1": True}},
            "options.logit_bias: [0] must have a number as its bias, or false to forbid the token; "
            "got an object",
        ),
        (
            {"logit_bias": [[1, 2.0]] * 1025},
            "options.logit_bias: must have at most 1024 entries; these are 1025; got an array",
        ),
    ],
)
def test_a_mistake_is_named_with_what_may_stand_there(
    options: dict[str, Any], message: str
) -> None:
    assert refusal(**options) == message


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*Options.model_fields, "unknown"]), VALUES))
def test_any_options_travel_or_are_refused_in_few_words(options: dict[str, Any]) -> None:
    try:
        asked = read(**options)
    except PronkError:
        message = refusal(**options)
        assert message.startswith("options.")
        assert len(message) < 300
        return
    body = GenerateBody(kind=asked.kind, options=asked.options)
    assert decode(encode(body)) == body


def test_what_has_no_effect_is_told_once_and_in_bounds(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_logged", set())
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            log_ignored({"tfs_z": 1, "low_vram": True, "no_such": 1, "top_k": 5, "x" * 5000: 1})
            log_ignored(["not", "an", "object"])
    assert [record.getMessage()[:60] for record in caplog.records] == [
        "option 'tfs_z' has no effect here: it is deprecated",
        "option 'low_vram' has no effect here: memory is the server's",
        "option 'no_such' has no effect here: there is no such option",
        "option '" + "x" * 52,
    ]
    caplog.clear()
    with caplog.at_level(logging.INFO):
        log_ignored({f"unknown{number}": 1 for number in range(10_000)})
    assert len(caplog.records) < 300
    assert all(len(record.getMessage()) < 150 for record in caplog.records)


def test_the_documentation_has_a_row_for_every_option() -> None:
    text = DOCUMENTATION.read_text()
    assert [name for name in Options.model_fields if f"`{name}`" not in text] == []
