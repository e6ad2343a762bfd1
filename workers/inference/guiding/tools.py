"""The tools of a request, and what of their arguments can be enforced.

A schema that llguidance cannot follow, or that would cost too much, is no reason to refuse a
request: then the arguments are only an object with the right keys, or any object at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from llguidance import LLMatcher, LLParserLimits

from ....protocol.errors import Code, PronkError
from ..grammars import JSON_OPTIONS, check_schema, forget_unknown_formats
from .endless import is_endless

Schema = dict[str, Any]

ANY_OBJECT: Schema = {"type": "object"}

MOST_VALUES = 50_000
"""JSON values that the schemas of all tools together may have and still be enforced."""

_MOST_KEYS = 500
"""Arguments of one tool whose keys are enforced, though their values cannot be."""

_COMBINED = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "unevaluatedProperties"}
)
"""Keywords beside which `properties` does not say all about an object."""

_GUIDANCE = {**JSON_OPTIONS, "coerce_one_of": True, "lenient": True}
"""As far as it goes, rather than not at all."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call."""

    name: str
    schema: Schema
    """What its arguments must be: always an object."""

    @property
    def properties(self) -> Mapping[str, Any] | None:
        """The arguments one by one; None where the schema does not list them."""
        if not self.closed:
            return None
        return _mapping(self.schema.get("properties"))

    @property
    def closed(self) -> bool:
        """Whether it has no arguments but those that are listed."""
        return (
            self.schema.get("additionalProperties") is False and not _COMBINED & self.schema.keys()
        )

    @property
    def required(self) -> frozenset[str]:
        """The arguments without which it cannot be called."""
        required = self.schema.get("required")
        return frozenset(filter(_is_text, required if isinstance(required, list) else ()))

    def of_property(self, key: str) -> Schema:
        """What the value of one argument must be, as a schema of its own."""
        inner = (self.properties or {}).get(key)
        if not isinstance(inner, dict):
            return {}
        inner = cast(Schema, inner)
        names = [name for name in ("$defs", "definitions") if name in self.schema]
        shared = {name: self.schema[name] for name in names}
        references = list(_references(inner))
        if not references:
            return dict(inner)
        within = tuple(f"#/{name}/" for name in names)
        if all(each.startswith(within) for each in [*references, *_references(shared)]):
            return {**inner, **shared}
        return {}

    def loosened(self) -> Tool:
        """The same with only the keys of its arguments, or not even these."""
        properties = self.properties
        if properties is None or len(properties) > _MOST_KEYS:
            return Tool(self.name, ANY_OBJECT)
        return Tool(self.name, _closed({key: {} for key in properties}, sorted(self.required)))


def read_tools(described: Iterable[Mapping[str, Any]]) -> list[Tool]:
    """The tools of a request, those behind `function` and bare ones; of two with one name the last.

    Raises `PronkError` (INVALID_REQUEST) for one without a name.
    """
    tools: dict[str, Tool] = {}
    values = 0
    for each in described:
        function = each.get("function")
        function = cast(Mapping[str, Any], function if isinstance(function, Mapping) else each)
        name = function.get("name")
        if not isinstance(name, str) or not name.strip():
            raise PronkError(Code.INVALID_REQUEST, "tools: each tool must have a name")
        tool, count = _read(name, function.get("parameters"), MOST_VALUES - values)
        values += count
        tools[name] = tool
    return list(tools.values())


def _read(name: str, parameters: Any, room: int) -> tuple[Tool, int]:
    """A tool, and how many values its schema has."""
    if parameters is None:
        return Tool(name, _closed({}, [])), 1
    if not isinstance(parameters, Mapping):
        return Tool(name, ANY_OBJECT), 1
    try:
        schema: Schema = json.loads(json.dumps(parameters))
    except (RecursionError, TypeError, ValueError):
        return Tool(name, ANY_OBJECT), 1
    tool = Tool(name, _of_object(schema))
    try:
        count = check_schema(schema)
        if count > room:
            return Tool(name, ANY_OBJECT), 0
    except PronkError:
        return tool.loosened(), 1
    if is_endless(schema):
        return tool.loosened(), count
    forget_unknown_formats(schema)
    return tool, count


def _of_object(schema: Schema) -> Schema:
    """What a schema says of objects; where it lists properties, there are no others."""
    schema.pop("x-guidance", None)
    if _COMBINED & schema.keys():
        return schema if "type" in schema else {"type": "object", **schema}
    schema["type"] = "object"
    properties, required = schema.get("properties"), schema.get("required") or []
    if isinstance(properties, dict) and isinstance(required, list):
        names = cast(list[Any], required)
        if all(_is_text(each) and each in properties for each in names):
            schema.setdefault("additionalProperties", False)
    return schema


def _closed(properties: Mapping[str, Any], required: Sequence[str]) -> Schema:
    known = [key for key in required if key in properties]
    return {
        "type": "object",
        "properties": dict(properties),
        "required": known,
        "additionalProperties": False,
    }


def guided(schema: Schema) -> str:
    """A schema as it stands behind `%json`."""
    return json.dumps({**schema, "x-guidance": _GUIDANCE})


def can_follow(schema: Schema, limits: LLParserLimits) -> bool:
    """Whether llguidance can enforce a schema. Takes its time."""
    try:
        grammar = LLMatcher.grammar_from_json_schema(guided(schema))
        wrong, _ = LLMatcher.validate_grammar_with_warnings(grammar, None, limits=limits)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a panic in Rust is no Exception
        return False
    return not wrong


def _references(value: Any) -> Iterable[str]:
    """Every `$ref` within a schema."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            found = cast(Schema, each).get("$ref")
            if isinstance(found, str):
                yield found
            waiting += cast(Schema, each).values()
        elif isinstance(each, list):
            waiting += cast(list[Any], each)


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
