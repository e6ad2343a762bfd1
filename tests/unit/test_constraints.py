"""Answers in a form: every one that ends has it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pronk.protocol.errors import Code
from pronk.protocol.messages.generation import Constraint, Grammar
from pronk.workers.inference.constraints import ConstraintFailed
from pronk.workers.inference.sampling import SamplingPlan
from support.constrained import (
    DEMO,
    JSON,
    Bench,
    allowed,
    bench,
    feed,
    generate,
    refused,
    schema,
    walk,
)
from support.models import write_reciting_model


@pytest.fixture(scope="module")
def demo() -> Iterator[Bench]:
    yield from bench(DEMO)


@pytest.fixture(scope="module")
def reciter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    path = tmp_path_factory.mktemp("models") / "reciter.gguf"
    write_reciting_model(path, ['{"k: 1}'])
    yield from bench(path)


# --- the form of answers


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("plan", [SamplingPlan(temperature=0.0), SamplingPlan(temperature=1.5)])
def test_a_model_that_would_say_something_else_keeps_to_the_schema(
    demo: Bench, plan: SamplingPlan
) -> None:
    matcher = demo.compiler.compile(schema(PERSON))
    text = generate(demo, matcher, "Tell me a story.", limit=300, plan=plan)
    value = json.loads(text)
    assert list(value) == ["name", "age", "tags"]
    assert conforms(value, PERSON)


def test_json_is_one_object(demo: Bench) -> None:
    for seed in range(10):
        matcher = demo.compiler.compile(JSON)
        assert isinstance(json.loads(demo.text(walk(demo, matcher, seed))), dict)


def test_an_answer_that_is_cut_is_the_beginning_of_its_form(reciter: Bench) -> None:
    matcher = reciter.compiler.compile(JSON)
    text = generate(reciter, matcher, "\n", limit=4, plan=SamplingPlan(temperature=0.0))
    assert text == '{"k:'  # inside a string, where the model may say what it likes


def test_when_the_form_is_complete_only_the_end_can_follow(demo: Bench) -> None:
    matcher = demo.compiler.compile(JSON)
    feed(demo, matcher, '{"a": 1')
    assert not matcher.finished
    feed(demo, matcher, "}")
    assert matcher.finished
    assert allowed(demo, matcher) == set(demo.ends)


def test_no_token_that_ends_or_signals_stands_within_an_answer(demo: Bench) -> None:
    vocabulary = demo.vocabulary
    signals = {token for token in range(vocabulary.size) if not vocabulary.piece(token)}
    matcher = demo.compiler.compile(JSON)
    feed(demo, matcher, '{"a": "')
    assert signals
    assert set(demo.ends) <= signals
    assert not allowed(demo, matcher) & signals


def test_every_character_can_stand_in_a_string(demo: Bench) -> None:
    text = '{"a": "é 漢 🦙 \\n \\u001f \\" \\\\ /", "": [-0.5e+3, true, null, {}]}'
    matcher = demo.compiler.compile(JSON)
    feed(demo, matcher, text)
    assert matcher.finished
    assert json.loads(text)


@pytest.mark.parametrize(
    "text", ["[", "1", " ", "{  ", "{\t", "{\n\n", "{\n" + " " * 25, '{"a": "\n', '{"a":.']
)
def test_what_is_no_json_object_is_refused_at_its_first_wrong_byte(demo: Bench, text: str) -> None:
    matcher = demo.compiler.compile(JSON)
    for byte in text[:-1]:
        feed(demo, matcher, byte)
    with pytest.raises(ConstraintFailed):
        feed(demo, matcher, text[-1])


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        (Constraint(Grammar.REGEX, r"[A-Z]{2}-\d{4}(é|ü)?"), r"[A-Z]{2}-\d{4}(é|ü)?"),
        (
            Constraint(Grammar.LARK, 'start: NAME ("," NAME)*\nNAME: /[a-c]{3}/'),
            r"[a-c]{3}(,[a-c]{3})*",
        ),
        (Constraint(Grammar.LARK, 'start: %json {"type": "boolean"}'), "true|false"),
        (
            Constraint(
                Grammar.GBNF,
                '# a list\nroot ::= "[" item ("," item){1,3} "]"\n'
                'item ::= [0-9a-f]{2} | "\\u0041\\u00e9\\\\"',
            ),
            r"\[([0-9a-f]{2}|Aé\\)(,([0-9a-f]{2}|Aé\\)){1,3}\]",
        ),
    ],
)
def test_an_answer_matches_its_grammar(demo: Bench, constraint: Constraint, pattern: str) -> None:
    for seed in range(5):
        text = demo.text(walk(demo, demo.compiler.compile(constraint), seed))
        assert re.fullmatch(pattern, text)


def test_what_was_said_before_a_death_is_accepted_and_goes_on_alike(demo: Bench) -> None:
    tokens = walk(demo, demo.compiler.compile(schema(PERSON)), 3)
    for cut in range(len(tokens)):
        first, second = (demo.compiler.compile(schema(PERSON)) for _ in range(2))
        for token in tokens[:cut]:
            allowed(demo, first)
            first.accept(token)
            second.accept(token)
        assert allowed(demo, first) == allowed(demo, second)


def test_a_mask_hides_no_poison(demo: Bench) -> None:
    logits = np.full(demo.vocabulary.size, np.nan, np.float32)
    demo.compiler.compile(JSON).apply(logits)
    assert np.isnan(logits[next(iter(allowed(demo, demo.compiler.compile(JSON))))])


# --- any schema


LEAVES = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"const": {"é": [1, "\n"]}}]),
    st.lists(st.text(max_size=6) | st.integers(-99, 99), min_size=1, max_size=4).map(
        lambda values: {"enum": values}
    ),
    st.tuples(st.integers(-1000, 1000), st.integers(0, 1000)).map(
        lambda pair: {"type": "integer", "minimum": pair[0], "maximum": pair[0] + pair[1]}
    ),
    st.tuples(st.integers(0, 5), st.integers(0, 9)).map(
        lambda pair: {"type": "string", "minLength": pair[0], "maxLength": sum(pair)}
    ),
)


def _branches(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    arrays = st.tuples(children, st.integers(0, 2), st.integers(0, 2)).map(
        lambda parts: {
            "type": "array",
            "items": parts[0],
            "minItems": parts[1],
            "maxItems": parts[1] + parts[2],
        }
    )
    objects = st.tuples(
        st.dictionaries(st.text(max_size=5), children, max_size=4), st.integers(0, 15)
    ).map(
        lambda parts: {
            "type": "object",
            "properties": parts[0],
            "required": [name for i, name in enumerate(parts[0]) if parts[1] >> i & 1],
            "additionalProperties": False,
        }
    )
    unions = st.lists(children, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts})
    return arrays | objects | unions


SCHEMAS = st.recursive(LEAVES, _branches, max_leaves=8)


def conforms(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is one of a schema's, for the keywords that stand here."""
    if "anyOf" in schema:
        return any(conforms(value, part) for part in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    if "const" in schema:
        return value == schema["const"]
    checks: dict[str, Callable[[], bool]] = {
        "boolean": lambda: isinstance(value, bool),
        "null": lambda: value is None,
        "integer": lambda: type(value) is int and schema["minimum"] <= value <= schema["maximum"],
        "string": lambda: (
            isinstance(value, str)
            and schema.get("minLength", 0) <= len(value) <= schema["maxLength"]
        ),
        "array": lambda: (
            isinstance(value, list)
            and schema["minItems"] <= len(value) <= schema["maxItems"]
            and all(conforms(item, schema["items"]) for item in value)
        ),
        "object": lambda: (
            isinstance(value, dict)
            and set(schema["required"]) <= value.keys() <= schema["properties"].keys()
            and all(conforms(item, schema["properties"][name]) for name, item in value.items())
        ),
    }
    return checks[schema["type"]]()


@given(SCHEMAS, st.integers(0, 2**32))
@settings(deadline=None, max_examples=40)
def test_an_answer_conforms_to_any_schema(demo: Bench, schema_: Any, seed: int) -> None:
    answer = walk(demo, demo.compiler.compile(schema(schema_)), seed)
    assert conforms(json.loads(demo.text(answer)), schema_)


@given(st.sampled_from(list(Grammar)), st.text(max_size=40))
@settings(deadline=None, max_examples=40)
def test_any_source_is_a_constraint_or_a_clear_refusal(
    demo: Bench, grammar: Grammar, source: str
) -> None:
    constraint = Constraint(grammar, source)
    error = refused(demo, constraint)
    if error is not None:
        assert error.code is Code.INVALID_REQUEST
        assert len(error.message) < 500
