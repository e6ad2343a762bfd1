"""Strategies for valid messages of every class, drawn from the very schemas that the codec checks.

Ids come from small pools, so that messages speak of the same requests, models and peers.
"""

from __future__ import annotations

from typing import Any, cast

from hypothesis import strategies as st
from pydantic import TypeAdapter

from pronk.protocol.messages import MESSAGES

REQUESTS = [f"{number:032x}" for number in range(1, 4)]
DIGESTS = ["a" * 64, "b" * 64, "e" * 64]
PEERS = [f"{number:016x}" for number in range(1, 7)]
ENDPOINTS = ["ipc:///nowhere/a.sock", "ipc:///nowhere/b.sock"]

_POOLS = {
    r"^[0-9a-f]{64}$": DIGESTS,
    r"^[0-9a-f]{32}$": REQUESTS,
    r"^[0-9a-f]{16}$": PEERS,
    r"^ipc://": ENDPOINTS,
    r"^tcp://[^\s/]+:[0-9]{1,5}$": ["tcp://0.0.0.0:1", "tcp://127.0.0.1:2"],
}


def messages(*names: str) -> st.SearchStrategy[Any]:
    """Valid messages of the classes with these names; of all classes without one."""
    return st.one_of([message(name) for name in names or sorted(MESSAGES)])


def message(name: str, **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Valid messages of one class; `fixed` replaces what its fields are drawn from."""
    schema = TypeAdapter(MESSAGES[name]).core_schema
    return _dataclass(_resolved(cast(Any, schema), {}), _definitions(schema), fixed)


def _definitions(schema: Any) -> dict[str, Any]:
    if schema["type"] != "definitions":
        return {}
    return {part["ref"]: part for part in schema["definitions"]}


def _resolved(schema: Any, definitions: dict[str, Any]) -> Any:
    match schema["type"]:
        case "definitions":
            return _resolved(schema["schema"], _definitions(schema))
        case "definition-ref":
            return definitions[schema["schema_ref"]]
    return schema


def _dataclass(
    schema: Any, definitions: dict[str, Any], fixed: dict[str, st.SearchStrategy[Any]]
) -> st.SearchStrategy[Any]:
    fields = {
        field["name"]: _strategy(field["schema"], definitions)
        for field in schema["schema"]["fields"]
        if field["name"] not in fixed
    }
    return st.builds(schema["cls"], **fields, **fixed)


def _strategy(schema: Any, definitions: dict[str, Any]) -> st.SearchStrategy[Any]:
    schema = _resolved(schema, definitions)

    def inner(part: Any) -> st.SearchStrategy[Any]:
        return _strategy(part, definitions)

    match schema["type"]:
        case "int":
            low, high = schema.get("ge", 0), schema.get("le", schema.get("lt", 2**31) - 1)
            near = st.integers(max(low, 0), min(high, 3))
            return near | st.sampled_from([low, high]) | st.integers(low, high)
        case "float":
            return st.sampled_from([-1.0, 0.0, 1e-9, 1e300, 1.8e9]) | st.floats(
                allow_nan=False, allow_infinity=False
            )
        case "str":
            if pool := _POOLS.get(schema.get("pattern")):
                return st.sampled_from(pool)
            return st.text(max_size=8)
        case "bytes":
            return st.binary(max_size=8)
        case "bool":
            return st.booleans()
        case "any":
            return st.none() | st.integers(-9, 9) | st.text(max_size=4)
        case "literal":
            return st.sampled_from(schema["expected"])
        case "enum":
            return st.sampled_from(schema["members"])
        case "nullable":
            return st.none() | inner(schema["schema"])
        case "default":
            return inner(schema["schema"])
        case "list":
            return st.lists(inner(schema["items_schema"]), max_size=3)
        case "dict":
            values = inner(schema["values_schema"])
            return st.dictionaries(inner(schema["keys_schema"]), values, max_size=3)
        case "function-after":
            return inner(schema["schema"])
        case "union":
            return st.one_of([inner(choice) for choice in schema["choices"]])
        case "dataclass":
            return _dataclass(schema, definitions, {})
    raise AssertionError(f"no values are drawn for {schema['type']!r}")
