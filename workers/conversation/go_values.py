"""A conversation and its tools as Ollama shows them to Go templates.

Names of fields and the form in JSON are those of Ollama's API, where `{{ .Tools }}`, `{{ .Function
}}`, `{{ .Function.Arguments }}` and the like print as JSON, with maps sorted by key. Every number
in JSON is a `float64`, as Go reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from .gotemplate.marshal import marshalled
from .gotemplate.values import Map, Methods, Slice, Struct
from .turns import Turn

_JSON: Methods = {"String": marshalled}

_DEEPEST = 30
"""How far properties and arguments may be nested; what is deeper is left out."""

_TYPESCRIPT = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "array": "any[]",
    "object": "Record<string, any>",
    "null": "null",
}


def _type_text(types: Sequence[str]) -> str:
    return types[0] if len(types) == 1 else f"[{' '.join(types)}]" if types else ""


def _typescript(property_: Struct) -> str:
    """The type of a parameter as TypeScript writes it."""
    if choices := property_.fields["AnyOf"]:
        return " | ".join(map(_typescript, choices))
    names = property_.fields["Type"]
    return " | ".join(_TYPESCRIPT.get(name, "any") for name in names) or "any"


class _Arguments(Map):
    methods: ClassVar[Methods] = _JSON
    go_type: ClassVar[str] = "template.templateArgs"


class _CalledFunction(Struct):
    go_type: ClassVar[str] = "template.templateToolCallFunction"
    json_names: ClassVar[Mapping[str, str]] = {
        "Index": "index",
        "Name": "name",
        "Arguments": "arguments",
    }


class _ToolCall(Struct):
    go_type: ClassVar[str] = "template.templateToolCall"
    json_names: ClassVar[Mapping[str, str]] = {"ID": "id", "Function": "function"}
    json_omits: ClassVar[frozenset[str]] = frozenset(("ID",))


class _ToolCalls(Slice):
    go_type: ClassVar[str] = "[]template.templateToolCall"


class _Message(Struct):
    go_type: ClassVar[str] = "template.templateMessage"
    is_pointer: ClassVar[bool] = True
    json_names: ClassVar[Mapping[str, str]] = {
        "Role": "role",
        "Content": "content",
        "Thinking": "thinking",
        "Images": "images",
        "ToolCalls": "tool_calls",
        "ToolName": "tool_name",
        "ToolCallID": "tool_call_id",
    }
    json_omits: ClassVar[frozenset[str]] = frozenset(
        ("Thinking", "Images", "ToolCalls", "ToolName", "ToolCallID")
    )


class _Messages(Slice):
    go_type: ClassVar[str] = "[]*template.templateMessage"


class _Types(Slice):
    go_type: ClassVar[str] = "api.PropertyType"
    methods: ClassVar[Methods] = {"String": _type_text}

    def json_form(self) -> Any:
        return self[0] if len(self) == 1 else list(self) or None


class _Property(Struct):
    go_type: ClassVar[str] = "api.ToolProperty"
    methods: ClassVar[Methods] = {"ToTypeScriptType": _typescript}
    json_names: ClassVar[Mapping[str, str]] = {
        "AnyOf": "anyOf",
        "Type": "type",
        "Items": "items",
        "Description": "description",
        "Enum": "enum",
        "Properties": "properties",
        "Required": "required",
    }
    json_omits: ClassVar[frozenset[str]] = frozenset(json_names)


class _Properties(Map):
    methods: ClassVar[Methods] = _JSON
    go_type: ClassVar[str] = "template.templateProperties"

    def zero(self) -> Any:
        return _property({}, 0)


class _Parameters(Struct):
    go_type: ClassVar[str] = "template.templateToolFunctionParameters"
    methods: ClassVar[Methods] = _JSON
    json_names: ClassVar[Mapping[str, str]] = {
        "Type": "type",
        "Defs": "$defs",
        "Items": "items",
        "Required": "required",
        "Properties": "properties",
    }
    json_omits: ClassVar[frozenset[str]] = frozenset(("Defs", "Items", "Required"))


class _ToolFunction(Struct):
    go_type: ClassVar[str] = "template.templateToolFunction"
    methods: ClassVar[Methods] = _JSON
    json_names: ClassVar[Mapping[str, str]] = {
        "Name": "name",
        "Description": "description",
        "Parameters": "parameters",
    }


class _Tool(Struct):
    go_type: ClassVar[str] = "template.templateTool"
    methods: ClassVar[Methods] = _JSON
    json_names: ClassVar[Mapping[str, str]] = {
        "Type": "type",
        "Items": "items",
        "Function": "function",
    }
    json_omits: ClassVar[frozenset[str]] = frozenset(("Items",))


class _Tools(Slice):
    go_type: ClassVar[str] = "template.templateTools"
    methods: ClassVar[Methods] = _JSON


def messages_value(turns: Sequence[Turn]) -> Slice:
    """`.Messages`."""
    return _Messages(
        _Message(
            Role=turn.role,
            Content=mended(turn.content),
            Thinking=mended(turn.thinking),
            Images=Slice(),
            ToolCalls=_ToolCalls(map(_call, turn.tool_calls)),
            ToolName=mended(turn.tool_name),
            ToolCallID=mended(turn.tool_call_id),
        )
        for turn in turns
    )


def tools_value(tools: Sequence[Mapping[str, Any]]) -> Slice:
    """`.Tools`, from what JSON has of them. What is not as the API has it counts as missing."""
    return _Tools(_tool(_object(tool)) for tool in tools)


def _call(call: Mapping[str, Any]) -> Struct:
    function = _object(call.get("function"))
    index = function.get("index")
    return _ToolCall(
        ID=_text(call.get("id")),
        Function=_CalledFunction(
            Index=index if type(index) is int else 0,
            Name=_text(function.get("name")),
            Arguments=_Arguments(_loose_map(_object(function.get("arguments")), 0)),
        ),
    )


def _tool(tool: Mapping[str, Any]) -> Struct:
    function = _object(tool.get("function"))
    parameters = _object(function.get("parameters"))
    return _Tool(
        Type=_text(tool.get("type")),
        Items=_loose(tool.get("items"), 0),
        Function=_ToolFunction(
            Name=_text(function.get("name")),
            Description=_text(function.get("description")),
            Parameters=_Parameters(
                Type=_text(parameters.get("type")),
                Defs=_loose(parameters.get("$defs"), 0),
                Items=_loose(parameters.get("items"), 0),
                Required=_texts(parameters.get("required")),
                Properties=_properties(parameters.get("properties"), 0),
            ),
        ),
    )


def _properties(value: object, depth: int) -> Map:
    if depth > _DEEPEST:
        return _Properties()
    entries = _object(value).items()
    return _Properties({mended(str(k)): _property(_object(v), depth + 1) for k, v in entries})


def _property(value: Mapping[str, Any], depth: int) -> Struct:
    types = value.get("type")
    choices = value.get("anyOf")
    if depth > _DEEPEST or not isinstance(choices, list):
        choices = []
    enum = value.get("enum")
    return _Property(
        AnyOf=Slice(_property(_object(choice), depth + 1) for choice in choices),
        Type=_Types([mended(types)] if isinstance(types, str) else _texts(types)),
        Items=_loose(value.get("items"), 0),
        Description=_text(value.get("description")),
        Enum=Slice(_loose(each, 0) for each in enum) if isinstance(enum, list) else Slice(),
        Properties=_properties(value.get("properties"), depth),
        Required=_texts(value.get("required")),
    )


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return mended(value) if isinstance(value, str) else ""


def _texts(value: object) -> Slice:
    return Slice(_text(each) for each in value) if isinstance(value, (list, tuple)) else Slice()


def _loose(value: object, depth: int) -> Any:
    """Any JSON, in the types that Go has for it."""
    match value:
        case str():
            return mended(value)
        case bool():
            return value
        case int() | float():
            return _number(value)
        case Mapping() if depth < _DEEPEST:
            return _loose_map(value, depth + 1)
        case list() | tuple() if depth < _DEEPEST:
            return [_loose(each, depth + 1) for each in value]
        case _:
            return None


def _number(value: float) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None


def _loose_map(value: Mapping[str, Any], depth: int) -> dict[str, Any]:
    return {mended(str(name)): _loose(each, depth) for name, each in value.items()}


def size_of(value: object, depth: int = 0) -> int:
    """About how many characters a value has as JSON, as far as it is shown."""
    match value:
        case str():
            return len(value) + 4
        case Mapping() if depth < 3 * _DEEPEST:
            return sum(
                len(str(name)) + 6 + size_of(each, depth + 1) for name, each in value.items()
            )
        case list() | tuple() if depth < 3 * _DEEPEST:
            return sum(size_of(each, depth + 1) for each in value) + 2
        case _:
            return 24


def mended(text: str) -> str:
    """A text without halves of surrogate pairs, which Go's strings cannot hold."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
