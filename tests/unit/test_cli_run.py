"""`pronk run` with something to ask: one answer."""

from __future__ import annotations

import json

import pytest

from support.cli import Pronk, error
from support.played_api import PlayedApi, said


def test_run_answers_a_prompt(api: PlayedApi, pronk: Pronk) -> None:
    api.answer = said("The sky ", "is\x1b[31m blue.")
    options = ["--system", "Be kind.", "--keepalive", "1h", "--format", "json", "--think=high"]
    result = pronk("run", "m", "Why is", "the sky blue?", *options)
    assert result.stdout == "The sky is\x1b[31m blue.\n", "a pipe gets what the model said"
    (asked,) = api.bodies("/api/generate")
    assert {name: value for name, value in asked.items() if value not in ("", False)} == {
        "model": "m",
        "prompt": "Why is the sky blue?",
        "system": "Be kind.",
        "stream": True,
        "format": "json",
        "keep_alive": "1h",
        "think": "high",
    }


def test_run_joins_standard_input_and_prompt(api: PlayedApi, pronk: Pronk) -> None:
    api.answer = said("ok")
    pronk("run", "m", "Sum it up", stdin=b"A text\xff\n")
    pronk("run", "m", stdin="Only this")
    assert [body["prompt"] for body in api.bodies("/api/generate")] == [
        "A text\ufffd\n Sum it up",
        "Only this",
    ]


def test_run_with_nothing_to_ask_loads_the_model(api: PlayedApi, pronk: Pronk) -> None:
    assert pronk("run", "m", "--keepalive", "-1").stdout == ""
    assert api.bodies("/api/generate") == [{"model": "m", "stream": False, "keep_alive": "-1"}]


def test_run_pulls_what_is_not_there(api: PlayedApi, pronk: Pronk) -> None:
    api.answer = said("hi")
    result = pronk("run", "new", "hello")
    assert result.stdout == "hi\n"
    assert result.stderr.splitlines()[-1] == "success"
    assert api.bodies("/api/pull")[0]["model"] == "new"


def test_run_prints_the_vector_of_an_embedding_model(api: PlayedApi, pronk: Pronk) -> None:
    api.models["e"] = {"capabilities": ["embedding"]}
    result = pronk("run", "e", "a text", "--dimensions", "2")
    assert json.loads(result.stdout) == [0.25, -0.5]
    assert api.bodies("/api/embed")[0]["input"] == "a text"
    assert api.bodies("/api/embed")[0]["dimensions"] == 2
    assert "needs a text" in error(pronk("run", "e", status=1))


def test_run_shows_what_a_model_thinks(api: PlayedApi, pronk: Pronk) -> None:
    api.answer = [{"model": "m", "response": "", "thinking": "Hm", "done": False}, *said("Yes.")]
    whole = pronk("run", "m", "Well?", "--think").stdout
    assert whole == "Thinking...\nHm\n...done thinking.\n\nYes.\n"
    assert pronk("run", "m", "Well?", "--think", "--hidethinking").stdout == "Yes.\n"
    pronk("run", "m", "Well?", "--think=false")
    pronk("run", "m", "--no-think", "--", "Well?", "--think=high")
    asked = api.bodies("/api/generate")
    assert [body.get("think") for body in asked] == [True, True, False, False]
    assert asked[-1]["prompt"] == "Well? --think=high"


def test_verbose_says_how_long_it_took(api: PlayedApi, pronk: Pronk) -> None:
    measured = {"total_duration": 2_500_000_000, "load_duration": 1_500_000, "prompt_eval_count": 9}
    measured |= {"prompt_eval_duration": 9_000_000, "eval_count": 50, "eval_duration": 10**9}
    api.answer = said("ok", **measured)
    assert pronk("run", "m", "hi", "--verbose").stderr.splitlines() == [
        "total duration:       2.5s",
        "load duration:        1.5ms",
        "prompt eval count:    9 token(s)",
        "prompt eval duration: 9ms",
        "prompt eval rate:     1000.00 tokens/s",
        "eval count:           50 token(s)",
        "eval duration:        1s",
        "eval rate:            50.00 tokens/s",
    ]


def test_switches_may_have_their_value_behind_them(api: PlayedApi, pronk: Pronk) -> None:
    api.answer = said("Blue.")
    result = pronk("run", "m", "--think=false", "--verbose=false", "--hidethinking=true", "hi")
    assert result.stderr == ""
    assert api.bodies("/api/generate")[-1]["think"] is False
    api.models["e"] = {"capabilities": ["embedding"]}
    pronk("run", "e", "--truncate=false", "hi")
    assert api.bodies("/api/embed")[-1]["truncate"] is False


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--keepalive", "soon"), "--keepalive soon: is not a duration"),
        (("--format", "xml"), "a format is `json`, or a JSON schema"),
        (("--think=much",), "--think is true, false, high"),
    ],
)
def test_options_that_mean_nothing_are_told(
    pronk: Pronk, arguments: tuple[str, ...], told: str
) -> None:
    assert told in error(pronk("run", "m", "hi", *arguments, status=1))


def test_an_answer_that_is_cut_off_is_an_error(api: PlayedApi, pronk: Pronk) -> None:
    api.answer = said("The sky")[:1]
    result = pronk("run", "m", "hi", status=1)
    assert result.stdout == "The sky\n"
    assert "cut off" in result.stderr
