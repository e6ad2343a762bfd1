"""Finds schemas that no finite value has, because they refer to themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

_MOST_STEPS = 100_000


class _Unclear(Exception):
    """It would take too long to tell."""


def is_endless(schema: Any) -> bool:
    """Whether somewhere in a schema stands one that requires itself without end: a model that
    begins such a value never comes to its end. True, too, where that would take too long to tell.
    """
    search = _Search(schema)
    try:
        return not all(search.ends(each, ()) for each in _schemas(schema))
    except (_Unclear, RecursionError):
        return True


class _Search:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._steps = 0
        self._finite: set[int] = set()

    def ends(self, schema: Any, within: tuple[int, ...]) -> bool:
        """Whether a value can have an end; not where it needs a schema of `within`."""
        if not isinstance(schema, dict):
            return True
        key = id(cast(object, schema))
        if key in self._finite:
            return True
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise _Unclear
        if key in within:
            return False
        within = (*within, key)
        needed, options = _parts(cast(dict[str, Any], schema))
        reference = schema.get("$ref")
        if isinstance(reference, str):
            needed.append(self._at(reference))
        ends = all(self.ends(each, within) for each in needed) and all(
            any(self.ends(each, within) for each in ways) for ways in options
        )
        if ends:
            self._finite.add(key)
        return ends

    def _at(self, reference: str) -> Any:
        """What a reference within the schema means; None for others."""
        if not reference.startswith("#"):
            return None
        value = self._root
        for part in reference[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            value = cast(dict[str, Any], value).get(part) if isinstance(value, dict) else None
        return value


def _parts(schema: dict[str, Any]) -> tuple[list[Any], list[list[Any]]]:
    """Schemas all of which a value needs, and those of which it needs one each."""
    needed: list[Any] = []
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, dict) and isinstance(required, list):
        known = cast(dict[str, Any], properties)
        needed += [known.get(name) for name in cast(list[Any], required) if isinstance(name, str)]
    least = schema.get("minItems")
    if isinstance(least, int) and least > 0:
        needed.append(schema.get("items"))
    every = schema.get("allOf")
    needed += cast(list[Any], every) if isinstance(every, list) else []
    options = [schema.get(name) for name in ("anyOf", "oneOf")]
    return needed, [cast(list[Any], each) for each in options if isinstance(each, list)]


def _schemas(value: Any) -> Iterator[Any]:
    """Every object within a schema."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            waiting += cast(dict[str, Any], each).values()
        elif isinstance(each, list):
            waiting += cast(list[Any], each)
