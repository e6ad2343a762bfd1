"""What `format` may be, and what is refused before it costs anything."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from pronk.frontend.bodies import parse_object
from pronk.frontend.dialects.ollama.formats import MAX_DEPTH, MAX_GRAMMAR, MAX_SCHEMA
from pronk.frontend.dialects.ollama.requests import ChatRequest, GenerateRequest, parse
from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.generation import Constraint, Grammar


def constraint(format_: object) -> Constraint | None:
    """What the dialect hands on, having read the request from JSON."""
    fields = parse_object(json.dumps({"model": "demo", "format": format_}).encode())
    chat, generate = parse(ChatRequest, fields), parse(GenerateRequest, fields)
    assert chat.generation().constraint == generate.generation().constraint
    return chat.generation().constraint


def refusal(format_: object) -> str:
    with pytest.raises(PronkError) as caught:
        constraint(format_)
    assert caught.value.code is Code.INVALID_REQUEST
    assert len(caught.value.message) < 500
    return caught.value.message


def nested(levels: int) -> Any:
    schema: Any = {}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize("nothing", [None, ""])
def test_null_and_an_empty_text_are_no_format(nothing: object) -> None:
    assert constraint(nothing) is None


def test_json_is_any_json_object() -> None:
    assert constraint("json") == Constraint(Grammar.JSON)


@pytest.mark.parametrize(
    "schema",
    [{}, {"type": "object"}, {"properties": {"zeta": {}, "alpha": {}}}, {"type": ["regex"]}],
)
def test_an_object_is_a_schema_and_its_keys_keep_their_order(schema: dict[str, Any]) -> None:
    asked = constraint(schema)
    assert asked is not None
    assert asked.grammar is Grammar.JSON_SCHEMA
    assert asked.source == json.dumps(schema, separators=(",", ":"))


@pytest.mark.parametrize(
    ("format_", "grammar"),
    [
        ({"type": "regex", "regex": "é+"}, Grammar.REGEX),
        ({"type": "lark", "grammar": "é+"}, Grammar.LARK),
        ({"type": "gbnf", "grammar": "é+"}, Grammar.GBNF),
    ],
)
def test_what_is_no_type_of_json_is_a_grammar(format_: object, grammar: Grammar) -> None:
    assert constraint(format_) == Constraint(grammar, "é+")


@pytest.mark.parametrize(
    ("format_", "words"),
    [
        ("yaml", 'format: must be "json" or a JSON schema; got "yaml"'),
        ("JSON", 'must be "json"'),
        ([], "got an array"),
        (True, "got true"),
        (0, "got 0"),
        ({"type": "regex"}, 'must be {"type": "regex", "regex": "…"}'),
        ({"type": "regex", "regex": ""}, 'must be {"type": "regex", "regex": "…"}'),
        ({"type": "regex", "regex": 7}, 'must be {"type": "regex", "regex": "…"}'),
        ({"type": "regex", "regex": "a", "flags": "i"}, "and nothing else"),
        ({"type": "lark", "regex": "a"}, 'must be {"type": "lark", "grammar": "…"}'),
    ],
)
def test_what_is_no_format_is_refused_by_name(format_: object, words: str) -> None:
    assert words in refusal(format_)


def test_a_schema_is_bounded_in_depth() -> None:
    assert constraint(nested(MAX_DEPTH))
    assert f"deeper than {MAX_DEPTH} levels" in refusal(nested(MAX_DEPTH + 1))


def test_a_schema_is_bounded_in_bytes() -> None:
    frame = len('{"const":""}')
    assert constraint({"const": "x" * (MAX_SCHEMA - frame)})
    assert f"limit of {MAX_SCHEMA}" in refusal({"const": "x" * (MAX_SCHEMA - frame + 1)})


@pytest.mark.parametrize(("kind", "key"), [("regex", "regex"), ("lark", "grammar")])
def test_a_grammar_is_bounded_in_bytes(kind: str, key: str) -> None:
    assert constraint({"type": kind, key: "é" * (MAX_GRAMMAR // 2)})
    assert f"limit of {MAX_GRAMMAR}" in refusal({"type": kind, key: "é" * (MAX_GRAMMAR // 2 + 1)})


def test_bombs_cost_the_frontend_nothing() -> None:
    began = time.process_time()
    refusal(nested(300))
    refusal({"enum": ["value"] * 300_000})
    refusal({"type": "regex", "regex": "a" * 5_000_000})
    assert time.process_time() - began < 2.0
