"""From a constraint to a grammar for llguidance, with what would cost too much refused.

llguidance bounds most of its own work, but not all: it recurses along references, compares
properties and alternatives in pairs, and builds an automaton as large as a `multipleOf`. Those are
counted here, before it sees them. Nothing here touches a model.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from llguidance import LLMatcher, regex_to_lark
from llguidance.gbnf_to_lark import gbnf_to_lark

from ...protocol.errors import Code, PronkError
from ...protocol.messages.generation import Constraint, Grammar

MAX_PATTERN = 1024
"""Characters of one `pattern`."""

MAX_RULES = 500
"""Rules of a GBNF grammar: sorting them out takes quadratic time."""

_LIMITS = {
    "values": 50_000,
    "properties": 2_000,
    "patternProperties": 32,
    "oneOf": 500,
    "$ref": 2_000,
    "pattern": 16_384,
    "multipleOf": 10_000,
}
"""What a schema may have in all: JSON values, keys of `properties` and of `patternProperties`,
alternatives of `oneOf`, references, characters of patterns, and the sum of the numbers that others
must be multiples of, without their trailing zeros."""

_MAX_DEPTH = 100

_DATA = frozenset({"enum", "const", "default", "examples"})
"""Keywords below which no schema stands."""

_FORMATS = frozenset(
    {
        *("date-time", "time", "date", "duration", "email", "hostname"),
        *("ipv4", "ipv6", "uuid", "uri", "unknown"),
    }
)
"""Formats of strings that can be enforced. JSON Schema takes others for annotations."""

JSON_OPTIONS: Any = {
    # Between two tokens of JSON: a space, or a line break with what indents the next line. A model
    # that may put spaces without end there does so.
    "whitespace_pattern": r" |\r?\n[ \t]{0,24}",
    "whitespace_flexible": True,
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
}
"""Also what a schema's own `x-guidance` would set otherwise."""

_GBNF_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)


def refusal(reason: str) -> PronkError:
    """The 400 for a constraint that cannot be followed."""
    return PronkError(Code.INVALID_REQUEST, f"format: {reason}")


def build_grammar(constraint: Constraint) -> str:
    """The grammar in llguidance's form, whose meaning only its compiler knows.

    Raises `PronkError` (INVALID_REQUEST) for what is too large, or already known to be wrong.
    """
    match constraint.grammar:
        case Grammar.JSON:  # an object, as Ollama has it: a bare number is no use to anybody
            return _from_schema({"type": "object"})
        case Grammar.JSON_SCHEMA:
            return _from_schema(_parsed(constraint.source))
        case Grammar.REGEX:
            # Classes such as \d are those of ASCII, as in a schema's `pattern`.
            return LLMatcher.grammar_from_regex(regex_to_lark(constraint.source, "dw"))
        case Grammar.LARK:
            return _from_lark(constraint.source)
        case Grammar.GBNF:
            return _from_lark(_lark_from_gbnf(constraint.source))


def _parsed(source: str) -> Any:
    try:
        return json.loads(source)
    except (ValueError, RecursionError):
        raise refusal("the schema is not valid JSON") from None


def _from_schema(schema: Any) -> str:
    check_schema(schema)
    forget_unknown_formats(schema)
    try:
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=JSON_OPTIONS)
    except ValueError as error:
        raise refusal(f"the schema cannot be used: {error}") from None


def _from_lark(source: str) -> str:
    """A Lark grammar, after a look at the schemas that are embedded in it."""
    decoder = json.JSONDecoder()
    for match in re.finditer(r"%json\s*", source):
        try:
            schema, _ = decoder.raw_decode(source, match.end())
        except (ValueError, RecursionError):
            raise refusal("what follows %json in the grammar is not valid JSON") from None
        check_schema(schema)
    return LLMatcher.grammar_from_lark(source)


def _lark_from_gbnf(source: str) -> str:
    if source.count("::=") > MAX_RULES:
        raise refusal(f"the grammar has more than {MAX_RULES} rules")
    try:
        return gbnf_to_lark(_GBNF_ESCAPE.sub(_plain_escape, source))
    except RecursionError:
        raise refusal("the grammar is nested too deeply") from None
    except Exception as error:  # the converter raises these of many kinds, some its own
        raise refusal(f"the grammar is not GBNF: {error or type(error).__name__}") from None


def _plain_escape(match: re.Match[str]) -> str:
    """An escape that Lark knows, too, for one of GBNF's."""
    code = int(match[1] or match[2] or "0", 16)
    if match[3] or 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        return match[0]
    return f"\\x{code:02X}" if code < 0x80 else chr(code)


def check_schema(schema: Any) -> int:
    """How many values a schema has.

    Raises `PronkError` for one that would take too long or too much memory.
    """
    counts: Counter[str] = Counter()
    for depth, value in _walk(schema):
        if depth > _MAX_DEPTH:
            raise refusal(f"the schema is nested deeper than {_MAX_DEPTH} levels")
        counts["values"] += 1
        if isinstance(value, (int, float)) and not _is_exact(value):
            raise refusal(f"the schema has the number {value!r:.40}, which cannot be held exactly")
        if isinstance(value, dict):
            _count_keywords(value, counts)
        for name, count in counts.items():
            if count > _LIMITS[name]:
                raise refusal(f"the schema is too large: its {name} go beyond {_LIMITS[name]}")
    return counts["values"]


def _is_exact(value: float) -> bool:
    """Whether llguidance, which reckons in doubles and 64-bit integers, takes a number as it is."""
    return abs(value) < 2**63 and (float(value) == value or value == 2**63 - 1)


def _walk(value: Any) -> Iterator[tuple[int, Any]]:
    """Every value within `value`, and how deep it stands."""
    waiting = [(0, value)]
    while waiting:
        depth, value = waiting.pop()
        yield depth, value
        if isinstance(value, dict):
            waiting += [(depth + 1, inner) for inner in value.values()]
        elif isinstance(value, list):
            waiting += [(depth + 1, inner) for inner in value]


def _count_keywords(schema: dict[str, Any], counts: Counter[str]) -> None:
    for name in ("properties", "patternProperties", "oneOf"):
        if isinstance(inner := schema.get(name), (dict, list)):
            counts[name] += len(inner)
    counts["$ref"] += isinstance(schema.get("$ref"), str)
    patterns = [schema.get("pattern")]
    if isinstance(by_pattern := schema.get("patternProperties"), dict):
        patterns += by_pattern
    for pattern in patterns:
        if isinstance(pattern, str):
            if len(pattern) > MAX_PATTERN:
                raise refusal(f"a pattern in the schema is longer than {MAX_PATTERN} characters")
            counts["pattern"] += len(pattern)
    multiple = schema.get("multipleOf")
    if isinstance(multiple, (int, float)):
        digits = Decimal(repr(float(multiple))).normalize().as_tuple().digits
        counts["multipleOf"] += int("".join(map(str, digits)))


def forget_unknown_formats(schema: Any) -> None:
    """Takes out each `format` of a string that is none of llguidance's, which refuses them."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if isinstance(name := value.get("format"), str) and name not in _FORMATS:
                del value["format"]
            waiting += [inner for key, inner in value.items() if key not in _DATA]
        elif isinstance(value, list):
            waiting += value
