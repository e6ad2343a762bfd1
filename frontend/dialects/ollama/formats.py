"""The `format` of a request: the form that its answer must have.

As in Ollama, `"json"` is any JSON object and an object is a JSON schema. What no schema can be is
ours: `{"type": "regex", "regex": "…"}`, `{"type": "lark", "grammar": "…"}` and
`{"type": "gbnf", "grammar": "…"}`, since none of these is a type of JSON.
"""

from __future__ import annotations

import orjson

from ....protocol.messages.generation import Constraint, Grammar

MAX_SCHEMA = 256 * 1024
"""Bytes of a schema, written without spaces."""

MAX_DEPTH = 100
"""Levels of objects and arrays within one another."""

MAX_GRAMMAR = 16 * 1024
"""Bytes of a regular expression or a grammar."""

_SOURCES = {
    "regex": (Grammar.REGEX, "regex"),
    "lark": (Grammar.LARK, "grammar"),
    "gbnf": (Grammar.GBNF, "grammar"),
}


def read_format(value: object) -> Constraint | None:
    """The constraint that a `format` means; None where there is none.

    Raises `ValueError` for what is no format or too large to be one. Whether a schema or a grammar
    has a meaning is for the worker to say, who compiles it.
    """
    if value is None or value == "":
        return None
    if value == "json":
        return Constraint(Grammar.JSON)
    if not isinstance(value, dict):
        raise ValueError('must be "json" or a JSON schema')
    kind = value.get("type")
    if isinstance(kind, str) and kind in _SOURCES:
        return _written(value, *_SOURCES[kind])
    return _schema(value)


def _written(value: dict[str, object], grammar: Grammar, key: str) -> Constraint:
    source = value.get(key)
    if not isinstance(source, str) or not source or value.keys() != {"type", key}:
        raise ValueError(f'must be {{"type": "{grammar}", "{key}": "…"}} and nothing else')
    size = len(source.encode())
    if size > MAX_GRAMMAR:
        raise ValueError(f"{key} has {size} bytes, over the limit of {MAX_GRAMMAR}")
    return Constraint(grammar, source)


def _schema(value: dict[str, object]) -> Constraint:
    if _deeper_than(value, MAX_DEPTH):
        raise ValueError(f"the schema is nested deeper than {MAX_DEPTH} levels")
    source = orjson.dumps(value)
    if len(source) > MAX_SCHEMA:
        raise ValueError(f"the schema has {len(source)} bytes, over the limit of {MAX_SCHEMA}")
    return Constraint(Grammar.JSON_SCHEMA, source.decode())


def _deeper_than(value: object, limit: int) -> bool:
    level: list[object] = [value]
    for _ in range(limit):
        below: list[object] = []
        for container in level:
            if isinstance(container, dict):
                below += container.values()
            elif isinstance(container, list):
                below += container
        level = below
    return any(isinstance(item, (dict, list)) for item in level)
