"""No description of a form does harm: what cannot be followed is refused, bombs included."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.generation import Constraint, Grammar
from pronk.workers.inference import bounded, constraints
from pronk.workers.inference.constraints import (
    ConstraintCompiler,
    ConstraintFailed,
    Matcher,
    compiled,
)
from pronk.workers.inference.token_table import TokenTable
from support.constrained import (
    DEMO,
    JSON,
    Bench,
    allowed,
    bench,
    feed,
    refusal,
    refused,
    schema,
    walk,
)


@pytest.fixture(scope="module")
def demo() -> Iterator[Bench]:
    yield from bench(DEMO)


@pytest.mark.parametrize("number", [1e300, 2**70, -(2**64), 2**53 + 1])
@pytest.mark.parametrize("keyword", ["minimum", "exclusiveMaximum", "const"])
def test_a_number_that_cannot_be_held_exactly_is_refused(
    demo: Bench, keyword: str, number: float
) -> None:
    with pytest.raises(PronkError, match="exactly"):
        demo.compiler.compile(schema({"type": "integer", keyword: number}))
    demo.compiler.compile(schema({"type": "integer", "maximum": 2**63 - 1}))


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (schema({"type": "foo"}), "Invalid type: foo"),
        (schema({"enum": []}), "Unsatisfiable"),
        (schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (schema({"$ref": "#/$defs/nothing"}), "/$defs/nothing"),
        (schema({"$ref": "http://127.0.0.1/schema"}), "http://127.0.0.1/schema"),
        (schema({"type": "string", "pattern": "(?=a)b"}), "look-ahead"),
        (schema({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "oneOf"),
        (Constraint(Grammar.JSON_SCHEMA, "{"), "not valid JSON"),
        (Constraint(Grammar.REGEX, "a(b"), "unclosed group"),
        (Constraint(Grammar.LARK, 'a: "b"'), "no start rule"),
        (Constraint(Grammar.LARK, "start: %json {"), "%json"),
        (Constraint(Grammar.LARK, "start: <|im_start|>"), "nothing can follow"),
        (Constraint(Grammar.GBNF, 'a ::= "b"'), "root"),
        (Constraint(Grammar.GBNF, 'root ::= "a\\'), "not GBNF"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_the_reason(
    demo: Bench, constraint: Constraint, words: str
) -> None:
    assert words in refusal(demo, constraint)


def test_a_format_of_strings_that_nobody_knows_is_an_annotation(demo: Bench) -> None:
    asked = {"type": "object", "properties": {"format": {"type": "string", "format": "password"}}}
    demo.compiler.compile(schema(asked))
    matcher = demo.compiler.compile(schema({"const": {"format": "password"}}))
    assert json.loads(demo.text(walk(demo, matcher, 1))) == {"format": "password"}


def test_a_schema_cannot_lift_the_bounds_on_spaces(demo: Bench) -> None:
    asked = {"type": "object", "x-guidance": {"whitespace_pattern": " +", "lenient": True}}
    matcher = demo.compiler.compile(schema(asked))
    with pytest.raises(ConstraintFailed):
        feed(demo, matcher, "{" + " " * 100)


def chain(length: int, link: Callable[[str], Any]) -> Constraint:
    """Definitions each of which refers to the next one."""
    names = {f"d{i}": link(f"#/$defs/d{i + 1}") for i in range(length)}
    return schema({"$defs": {**names, f"d{length}": {"type": "object"}}, "$ref": "#/$defs/d0"})


def nested(levels: int) -> Any:
    inner: Any = {}
    for _ in range(levels):
        inner = {"items": inner}
    return inner


BOMBS = {
    "depth": schema(nested(500)),
    "deep pattern": schema({"pattern": "(" * 500 + "a" + ")" * 500}),
    "reference to itself": schema({"$ref": "#"}),
    "references in a circle": schema({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
    "circle of intersections": schema({"allOf": [{"$ref": "#"}, {"type": "object"}]}),
    "chain of references": chain(5000, lambda name: {"$ref": name}),
    "chain of objects": chain(5000, lambda name: {"properties": {"x": {"$ref": name}}}),
    "product of choices": schema(
        {
            "type": "object",
            "allOf": [
                {"oneOf": [{"required": ["a"]}, {"properties": {f"b{i}": {"const": i}}}]}
                for i in range(30)
            ],
        }
    ),
    "huge enum": schema({"enum": [f"value {i}" for i in range(100_000)]}),
    "huge choice": schema({"oneOf": [{"const": f"v{i}"} for i in range(10_000)]}),
    "many properties": schema({"properties": {f"p{i}": {} for i in range(10_000)}}),
    "many patterns": schema({"patternProperties": {f"^{i}x": {} for i in range(1000)}}),
    "long pattern": schema({"pattern": "a?" * 5000 + "a" * 5000}),
    "multiples": schema({"type": "integer", "multipleOf": 2147483647}),
    "many multiples": schema({"items": [{"multipleOf": 1000 + i} for i in range(100)]}),
    "multiples in lark": Constraint(Grammar.LARK, 'start: %json {"multipleOf": 2147483647}'),
    "too many digits": schema({"minLength": 2**64, "type": "string"}),
    "deep parentheses": Constraint(Grammar.LARK, "start: " + "(" * 8000 + '"a"' + ")" * 8000),
    "deep gbnf": Constraint(Grammar.GBNF, "root ::= " + "(" * 8000 + '"a"' + ")" * 8000),
    "many rules": Constraint(
        Grammar.GBNF, "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(1000))
    ),
    "repeated repetition": Constraint(Grammar.REGEX, "(" * 300 + "a" + "){1,1000}" * 300),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_and_the_compiler_is_fit_for_the_next(demo: Bench, name: str) -> None:
    refusal(demo, BOMBS[name])
    assert demo.compiler.compile(JSON)


@pytest.mark.parametrize(
    "constraint",
    [
        chain(1000, lambda name: {"properties": {"x": {"$ref": name}}}),
        Constraint(
            Grammar.LARK,
            "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(900)) + "r900: /a{50}/",
        ),
        schema({"type": "array", "minItems": 10**9, "items": {"type": "integer"}}),
        schema({"type": "string", "minLength": 10**9}),
        Constraint(Grammar.REGEX, "(a+)+b"),
        Constraint(Grammar.REGEX, "((a{1,100}){1,100}){1,100}b"),
        Constraint(Grammar.LARK, 'start: start start | "a" | ""'),
    ],
)
def test_what_only_looks_like_a_bomb_is_followed(demo: Bench, constraint: Constraint) -> None:
    matcher = demo.compiler.compile(constraint)
    for _ in range(5):
        matcher.accept(min(allowed(demo, matcher) - set(demo.ends)))


def test_a_grammar_that_is_too_ambiguous_fails_its_own_answer_only(
    demo: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constraints, "MASK_BURST", 0.05)
    ambiguous = Constraint(Grammar.LARK, 'start: e\ne: e "a" e | e e e | "a" | "" ')
    matcher, innocent = demo.compiler.compile(ambiguous), demo.compiler.compile(JSON)
    token = demo.vocabulary.tokenize("a")[0]

    def follow() -> None:
        for _ in range(3000):
            allowed(demo, matcher)
            matcher.accept(token)

    with pytest.raises(ConstraintFailed):
        follow()
    assert allowed(demo, innocent)


def test_grammars_are_compiled_side_by_side(demo: Bench) -> None:
    texts: dict[int, str] = {}

    def compile_and_walk(seed: int) -> None:
        matcher = demo.compiler.compile(schema({"const": seed}))
        texts[seed] = demo.text(walk(demo, matcher, seed))

    threads = [threading.Thread(target=compile_and_walk, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert texts == {seed: str(seed) for seed in range(3)}


def test_a_grammar_that_takes_too_long_is_given_up(
    demo: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = ConstraintCompiler(demo.vocabulary)
    compiler.compile(JSON)
    slow = schema({"properties": {f"p{i}": {"type": "string"} for i in range(1000)}})
    given_up = threading.Event()

    def compile_and_wait(table: TokenTable, grammar: str) -> Matcher:
        """What is done before anybody looks at the time that it took is not given up."""
        matcher = compiled(table, grammar)
        given_up.wait(60)
        return matcher

    with monkeypatch.context() as patch:
        patch.setattr(constraints, "COMPILE_SECONDS", 0.001)
        patch.setattr(constraints, "compiled", compile_and_wait)
        assert "too long to compile" in refusal(Bench(demo.model, compiler), slow)
    given_up.set()
    assert compiler.compile(JSON)


def test_grammars_that_were_given_up_are_bounded_in_number(
    demo: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "_MOST", 0)
    monkeypatch.setattr(bounded, "_PATIENCE", 0.01)
    error = refused(Bench(demo.model, ConstraintCompiler(demo.vocabulary)), JSON)
    assert error is not None
    assert error.code is Code.UNAVAILABLE
    assert error.retry_after
