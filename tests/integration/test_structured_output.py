"""Answers in a form, through HTTP and the official client."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import ollama
import pytest
from pydantic import BaseModel

USER = [{"role": "user", "content": "Tell me about llamas."}]


class Animal(BaseModel):
    """What the model has never been taught to say."""

    legs: int
    is_wild: bool
    colours: list[bool]


def answer(http: httpx.Client, format_: object, **options: Any) -> dict[str, Any]:
    """The final object of a chat without streaming."""
    options = {"seed": 3, "num_predict": 500, **options}
    request = {"model": "demo", "messages": USER, "format": format_, "options": options}
    response = http.post("/api/chat", json={**request, "stream": False})
    assert response.status_code == 200, response.text
    return response.json()


def test_the_official_client_gets_what_its_schema_says(client: ollama.Client):
    schema = Animal.model_json_schema()
    schema["properties"]["legs"] |= {"minimum": 0, "maximum": 9}
    schema["properties"]["colours"] |= {"maxItems": 3}
    for temperature in (0.0, 1.0):
        options = {"temperature": temperature, "seed": 1}
        reply = client.chat("demo", USER, format=schema, options=options)
        assert reply.done_reason == "stop"
        assert Animal.model_validate_json(reply.message.content or "")


def test_many_who_ask_for_a_form_at_once_all_get_it(http: httpx.Client):
    """Grammars are compiled a few at a time: the others wait for their turn."""
    with ThreadPoolExecutor(24) as pool:
        done = list(pool.map(lambda n: answer(http, {"const": n}), range(24)))
    assert [json.loads(one["message"]["content"]) for one in done] == list(range(24))


def test_generate_takes_a_format_and_streams_it(client: ollama.Client):
    parts = list(client.generate("demo", "hi", format={"enum": ["yes", "no"]}, stream=True))
    assert json.loads("".join(part.response for part in parts)) in ("yes", "no")
    assert parts[-1].done_reason == "stop"


def test_json_begins_as_an_object_and_ends_whole_or_for_its_length(http: httpx.Client):
    done = answer(http, "json")
    if done["done_reason"] == "stop":
        assert isinstance(json.loads(done["message"]["content"]), dict)
    cut = answer(http, "json", num_predict=2)
    assert cut["message"]["content"].startswith("{")
    assert answer(http, {"const": "a longer text"}, num_predict=2)["done_reason"] == "length"


def test_an_empty_format_is_none(http: httpx.Client):
    free = answer(http, None, temperature=0)["message"]["content"]
    assert not free.startswith("{")
    assert answer(http, "", temperature=0)["message"]["content"] == free


@pytest.mark.parametrize(
    ("format_", "pattern"),
    [
        ({"type": "regex", "regex": "[A-Z]{3}-[0-9]{2}"}, "[A-Z]{3}-[0-9]{2}"),
        ({"type": "lark", "grammar": 'start: "a" ("b" | "c")'}, "a[bc]"),
        ({"type": "gbnf", "grammar": 'root ::= "a" ("b" | "c")'}, "a[bc]"),
    ],
)
def test_regular_expressions_and_grammars(http: httpx.Client, format_: object, pattern: str):
    done = answer(http, format_)
    assert re.fullmatch(pattern, done["message"]["content"])
    assert done["done_reason"] == "stop"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("format_", "words"),
    [
        ("yaml", "format: must be"),
        ({"type": "unicorn"}, "Invalid type: unicorn"),
        ({"type": "string", "pattern": "("}, "unclosed group"),
        ({"type": "regex", "regex": "(?=a)"}, "look-around"),
        ({"type": "gbnf", "grammar": "root"}, "not GBNF"),
        ({"type": "integer", "multipleOf": 2147483647}, "multipleOf"),
        ({"$ref": "#"}, "nothing can follow"),
        ({"enum": ["x" * 100] * 9000}, "over the limit"),
    ],
)
def test_a_format_that_cannot_be_followed_is_a_400_with_the_reason(
    http: httpx.Client, format_: object, words: str, stream: bool
):
    request = {"model": "demo", "messages": USER, "format": format_, "stream": stream}
    response = http.post("/api/chat", json=request)
    assert response.status_code == 400
    assert words in response.json()["error"]
    assert answer(http, {"const": 1})["message"]["content"] == "1"
