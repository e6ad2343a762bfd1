"""The tools of a request, as far as reading a call depends on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .values import NotAValue, load

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class Offered:
    """Names of tools, and the types of their parameters."""

    def __init__(self, tools: Iterable[Mapping[str, Any]] | None) -> None:
        """`tools` as in a request; None where nothing is known of them."""
        self._types: dict[str, dict[str, frozenset[str]]] | None = None
        if tools is None:
            return
        self._types = {}
        for tool in tools:
            function = _mapping(tool.get("function")) or tool
            properties = _mapping(_mapping(function.get("parameters")).get("properties"))
            self._types[str(function.get("name", ""))] = {
                str(key): frozenset(_types(_mapping(schema))) for key, schema in properties.items()
            }

    @property
    def none(self) -> bool:
        """Whether there is certainly no tool to call."""
        return self._types is not None and not self._types

    @property
    def names(self) -> frozenset[str] | None:
        """What a tool may be called; None where it may be called anything."""
        return None if self._types is None else frozenset(self._types)

    def has(self, name: str) -> bool:
        """Whether a tool may be called that."""
        return self._types is None or name in self._types

    def value(self, tool: str, key: str, text: str, *, quoted: bool) -> Any:
        """What an argument means whose text does not tell a number from its digits."""
        types = (self._types or {}).get(tool, {}).get(key, frozenset())
        if types == {"string"} and not quoted:
            return text
        try:
            value = load(text)
        except NotAValue:
            return text
        if isinstance(value, str):
            return value if quoted else text
        if types and not any(_fits(value, each) for each in types) and "string" in types:
            return text
        return value


def kind_of(value: Any) -> str:
    """What JSON Schema calls a value."""
    for name in ("string", "boolean", "number", "array", "object"):
        if _fits(value, name):
            return name
    return "null"


def _fits(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES.get(name, ()))


def _types(schema: Mapping[str, Any]) -> Iterable[str]:
    """The types that a schema allows, as far as they are plain to see."""
    declared = schema.get("type")
    if isinstance(declared, str):
        yield declared
    elif isinstance(declared, list):
        yield from map(str, declared)
    for name in ("anyOf", "oneOf"):
        options = schema.get(name)
        for option in options if isinstance(options, list) else ():
            kind = _mapping(option).get("type")
            if isinstance(kind, str):
                yield kind
    values = schema.get("enum")
    if "type" not in schema and isinstance(values, list) and values:
        yield from {"string"} if all(isinstance(value, str) for value in values) else ()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
