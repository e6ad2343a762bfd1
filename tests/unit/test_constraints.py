"""Answers in a form: every one that ends has it, and no description of a form does harm."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.generation import Constraint, Grammar
from pronk.workers.inference import constraints
from pronk.workers.inference.constraints import ConstraintCompiler, ConstraintFailed, Matcher
from pronk.workers.inference.context import Context, ContextPlan
from pronk.workers.inference.detokenizer import Detokenizer
from pronk.workers.inference.llama import Model
from pronk.workers.inference.samplers import Sampler
from pronk.workers.inference.sampling import SamplingPlan
from pronk.workers.inference.vocabulary import Vocabulary
from support.models import write_reciting_model

DEMO = Path(__file__).parents[2] / "workers/store/demo/demo.gguf"

JSON = Constraint(Grammar.JSON)
CLOSING = (b'"', b"}", b"]", b",", b":")


@dataclass
class Bench:
    """A model with all that is needed to have it answer."""

    model: Model
    compiler: ConstraintCompiler

    @property
    def vocabulary(self) -> Vocabulary:
        return self.model.vocabulary

    @cached_property
    def ends(self) -> list[int]:
        """Tokens that end an answer."""
        tokens = range(self.vocabulary.size)
        return [token for token in tokens if self.vocabulary.ends_generation(token)]

    @cached_property
    def closing(self) -> list[int]:
        """Tokens that end something in JSON."""
        pieces = map(self.vocabulary.piece, range(self.vocabulary.size))
        return [token for token, piece in enumerate(pieces) if piece.strip()[:1] in CLOSING]

    def text(self, tokens: list[int]) -> str:
        detokenizer = Detokenizer()
        text = "".join(detokenizer.push(self.vocabulary.piece(token)) for token in tokens)
        return text + detokenizer.finish()


def bench(path: Path) -> Iterator[Bench]:
    model = Model(path)
    yield Bench(model, ConstraintCompiler(model.vocabulary))
    model.close()


@pytest.fixture(scope="module")
def demo() -> Iterator[Bench]:
    yield from bench(DEMO)


@pytest.fixture(scope="module")
def reciter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    path = tmp_path_factory.mktemp("models") / "reciter.gguf"
    write_reciting_model(path, ['{"k: 1}'])
    yield from bench(path)


def schema(value: object) -> Constraint:
    return Constraint(Grammar.JSON_SCHEMA, json.dumps(value))


def generate(bench: Bench, matcher: Matcher, prompt: str, *, limit: int, plan: SamplingPlan) -> str:
    """The model's answer, with each token chosen as the engine does it."""
    context = Context(bench.model, ContextPlan(slots=1, length=1024, threads=1))
    sampler = Sampler(plan, 7, bench.vocabulary)
    answer: list[int] = []
    try:
        tokens, position = bench.vocabulary.tokenize(prompt), 0
        while len(answer) < limit:
            last = len(tokens) - 1
            context.decode(tokens, range(position, position + last + 1), [0] * len(tokens), [last])
            position += len(tokens)
            matcher.apply(context.logits(last))
            token = sampler.sample(context, last, len(answer))
            matcher.accept(token)
            answer.append(token)
            if bench.vocabulary.ends_generation(token):
                break
            tokens = [token]
        return bench.text(answer)
    finally:
        sampler.close()
        context.close()


def walk(bench: Bench, matcher: Matcher, seed: int, limit: int = 1000) -> list[int]:
    """A random answer of a model that likes to come to an end."""
    rng = np.random.default_rng(seed)
    answer: list[int] = []
    while len(answer) < limit:
        logits = rng.gumbel(size=bench.vocabulary.size).astype(np.float32)
        logits[bench.closing + bench.ends] += 6
        matcher.apply(logits)
        token = int(logits.argmax())
        assert np.isfinite(logits[token])
        matcher.accept(token)
        answer.append(token)
        if bench.vocabulary.ends_generation(token):
            return answer
    raise AssertionError(f"no end: {bench.text(answer)[:500]}")


def allowed(bench: Bench, matcher: Matcher) -> set[int]:
    logits = np.zeros(bench.vocabulary.size, np.float32)
    matcher.apply(logits)
    return {int(token) for token in np.flatnonzero(logits == 0)}


def feed(bench: Bench, matcher: Matcher, text: str) -> None:
    for token in bench.vocabulary.tokenize(text):
        matcher.accept(token)


def refused(bench: Bench, constraint: Constraint) -> PronkError | None:
    """The error that compiling ends with; None when it does not."""
    try:
        bench.compiler.compile(constraint)
    except PronkError as error:
        return error
    return None


def refusal(bench: Bench, constraint: Constraint) -> str:
    error = refused(bench, constraint)
    assert error is not None
    assert error.code is Code.INVALID_REQUEST
    message = error.message
    assert message.startswith("format: ")
    assert len(message) < 500
    assert "\n" not in message
    return message


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


# --- what cannot be compiled, and bombs


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
    with monkeypatch.context() as patch:
        patch.setattr(constraints, "COMPILE_SECONDS", 0.001)
        assert "too long to compile" in refusal(Bench(demo.model, compiler), slow)
    assert compiler.compile(JSON)


def test_grammars_that_were_given_up_are_bounded_in_number(
    demo: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constraints, "_MOST_COMPILING", 0)
    monkeypatch.setattr(constraints, "_PATIENCE", 0.01)
    error = refused(Bench(demo.model, ConstraintCompiler(demo.vocabulary)), JSON)
    assert error is not None
    assert error.code is Code.UNAVAILABLE
    assert error.retry_after
