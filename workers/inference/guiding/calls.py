"""From a description of how calls are written, and tools, to grammars of calls.

Everything is text here: whether a marker is one token or many is the vocabulary's business.
"""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...conversation.formats.description import Calls, Syntax
from ...conversation.formats.loose import can_be_key
from .lark import GAP, SPACE, Rules, any_of, joined, literal, marker
from .tools import Schema, Tool

_LONGEST_NAME = 250

_TAIL = "S?"
"""What a token may have behind the end of a call."""

_COMMA = f'{GAP} "," {GAP}'
_ID = r"/[A-Za-z0-9_\-]{1,40}/"
_INDEX = "/[0-9]{1,4}/"
_FREE_KEY = r"/[A-Za-z_][A-Za-z0-9_.\-]{0,63}/"
_IDENTIFIER = re.compile(r"[^\W\d][\w.\-]*")

_NARROWING = frozenset({"const", "pattern", "format", "minLength", "maxLength", "$ref"})
"""Keywords that say more of a text than that it is one."""

_SIGNAL = re.compile(r"<[^<>]+>|\[[A-Z_]+\]")

_HEADS = ("", " ", "\n", "\n  ", "\n    ")
"""White space that may follow the bracket with which a call begins that no marker announces."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A way into calls."""

    openings: tuple[str, ...]
    """Texts one of which stands at the beginning: where it is complete, a call is open."""
    grammar: str
    """Of everything from there to the call's end."""
    bare: bool = False
    """Whether it counts only where nothing was said before: it could be text as well."""
    strict: bool = False
    """Whether the answer ends with the call."""
    after: bool = True
    """Whether it may also stand where no section was opened."""


def entries(
    calls: Calls, tools: Sequence[Tool], ends: Sequence[str] = (), others: Sequence[str] = ()
) -> list[Entry]:
    """The ways into the calls of one format. Empty where none of the tools can be called in it.

    `ends` are the texts of tokens that end an answer: what comes behind one is never written.
    `others` are markers that announce something else.
    """
    writer = _Writer(calls, tools, ends)
    if not writer.tools:
        return []
    found: list[Entry] = []
    section, each = (_signal(each.start, others) for each in (calls.section, calls.each))
    if section:
        found.append(Entry(writer.openings(section, others, each), writer.section()))
    if each and each != section:
        found.append(Entry(writer.openings(each, others, whole=calls.each.start), writer.one()))
    if not each:
        openings = writer.bare_openings()
        if openings:
            grammar = writer.one() if section else writer.section()
            found.append(Entry(openings, grammar, bare=True, after=not section))
    return found


def _signal(text: str, others: Sequence[str]) -> str:
    """The part of a marker after which it is certain that a call comes."""
    first = _first(text)
    found = _SIGNAL.match(first)
    if found and not any(other.startswith(found[0]) for other in others):
        return found[0]
    return first


def _first(text: str) -> str:
    return (text.split() or [""])[0]


class _Writer:
    """Writes the grammars of one format for some tools."""

    def __init__(self, calls: Calls, tools: Sequence[Tool], ends: Sequence[str]) -> None:
        self._calls = calls
        self._ends = ends
        self.tools = [tool for tool in tools if self._can_call(tool.name)]

    # Whole answers

    def one(self) -> str:
        """One call."""
        rules = Rules()
        return rules.text(joined(self._one(rules), _TAIL))

    def section(self) -> str:
        """All calls of an answer, with what stands around them."""
        calls, rules = self._calls, Rules()
        one = rules.add(self._one(rules))
        start, end = marker(calls.section.start), marker(self._ended(calls.section.end))
        closes = calls.listed or self._ended(calls.section.end).strip()
        separator = (
            joined(SPACE, '","', SPACE) if calls.listed else marker(calls.separator) or SPACE
        )
        many = one
        if closes and calls.several:
            many = joined(one, f"( {joined(separator, one)} )*")
        if calls.listed:
            many = joined('"["', SPACE, many, SPACE, '"]"')
        loose = SPACE if start else ""
        return rules.text(joined(start, loose, many, SPACE if end else "", end, _TAIL))

    def _one(self, rules: Rules) -> str:
        calls = self._calls
        loose = SPACE if calls.syntax in (Syntax.OBJECT, Syntax.PYTHON) else ""
        start, end = marker(calls.each.start), marker(self._ended(calls.each.end))
        return joined(start, loose, self._item(rules), SPACE if end else "", end)

    def _ended(self, text: str) -> str:
        """A marker without what could come only behind the answer's end."""
        for end in self._ends:
            text = text.partition(end)[0]
        return text

    def openings(
        self, text: str, others: Sequence[str], inner: str = "", whole: str = ""
    ) -> tuple[str, ...]:
        """The texts behind which a call is certain, where `text` may begin something else, too.

        It is the first part of the `whole` marker.
        """
        calls = self._calls
        if not any(other.startswith(text) for other in others):
            return (text,)
        if inner:
            return (text + inner,)
        if calls.syntax is Syntax.OBJECT:
            return (text + ("[" if calls.listed else "{"),)
        stop = next((behind for behind in calls.between if behind), "{")[:1]
        head = whole.lstrip() if whole.lstrip().startswith(text) else text
        return tuple(f"{head}{tool.name}{stop}" for tool in self.tools)

    def bare_openings(self) -> tuple[str, ...]:
        """How a call begins that no marker announces."""
        calls = self._calls
        if calls.syntax is Syntax.OBJECT:
            keys = [calls.name[0]] if calls.name else [tool.name for tool in self.tools[:64]]
            listed = calls.listed and not calls.section.start.strip()
            brackets = ["[{", "[ {", "[\n{", "[\n  {"] if listed else ["{"]
            return tuple(
                f"{bracket}{space}{_json(key)}"
                for key in keys
                for bracket in brackets
                for space in _HEADS
            )
        if calls.syntax is Syntax.NAMED and not calls.section.start.strip():
            return tuple(f"{tool.name}{calls.between[0]}{{" for tool in self.tools)
        if calls.syntax is Syntax.PYTHON and calls.listed and not calls.section.start.strip():
            return tuple(f"[{tool.name}(" for tool in self.tools)
        return ()

    # Names

    def _can_call(self, name: str) -> bool:
        """Whether a name can be written, and be read again."""
        calls = self._calls
        if name != name.strip():
            return False
        if calls.syntax is Syntax.OBJECT:
            marked = calls.section.start.strip() or calls.each.start.strip()
            return bool(marked) or (len(name) <= _LONGEST_NAME and _json(name) == f'"{name}"')
        if "\n" in name or len(name) > _LONGEST_NAME:
            return False
        if calls.syntax is Syntax.PYTHON:
            return bool(_IDENTIFIER.fullmatch(name))
        return all((name + stop).find(stop) == len(name) for stop in self._stops())

    def _stops(self) -> list[str]:
        """What may stand right behind a name."""
        calls = self._calls
        behind = dict(zip(calls.fields, calls.between, strict=True))
        if text := behind.get("name", "").strip():
            return [text]
        if calls.syntax is Syntax.NAMED or calls.parameter is None:
            return ["{"]
        ends = (calls.each.end, calls.section.end)
        closing = next((_first(end) for end in ends if end.strip()), "")
        return [each for each in (_first(calls.parameter.start), closing) if each]

    # The syntaxes

    def _item(self, rules: Rules) -> str:
        match self._calls.syntax:
            case Syntax.OBJECT:
                return self._object(rules)
            case Syntax.NAMED:
                return self._named(rules)
            case Syntax.TAGGED:
                return self._tagged(rules)
            case Syntax.PYTHON:
                return self._python(rules)

    def _arguments(self, rules: Rules, tool: Tool) -> str:
        if self._calls.quote:
            known = tool.properties
            if known is not None:
                known = {key: value for key, value in known.items() if can_be_key(key)}
            return rules.loose(self._calls.quote, known, tool.required)
        if not self._calls.textual:
            return rules.json(tool.schema)
        inner = rules.escaped(tool.schema, tool.properties, tool.required)
        return rules.add(f'"\\"" {inner} "\\""')

    def _object(self, rules: Rules) -> str:
        calls = self._calls
        if not calls.name:
            ways = [
                joined(literal(_json(tool.name)), GAP, '":"', GAP, self._arguments(rules, tool))
                for tool in self.tools
            ]
            return joined('"{"', GAP, any_of(ways), GAP, '"}"')
        name, arguments = calls.name[:-1], calls.arguments[:-1]
        common = 0
        while common < min(len(name), len(arguments)) and name[common] == arguments[common]:
            common += 1
        before = [self._open(name[:depth], calls.name[depth]) for depth in range(len(name) + 1)]
        middle = [self._close(name[:depth]) for depth in range(len(name), common, -1)]
        middle += [_COMMA, _member(calls.arguments[common])]
        middle += [
            self._open(arguments[:depth], calls.arguments[depth])
            for depth in range(common + 1, len(arguments) + 1)
        ]
        gap = rules.add(joined(*middle))
        ways = [
            joined(literal(_json(tool.name)), gap, self._arguments(rules, tool))
            for tool in self.tools
        ]
        after = [self._close(arguments[:depth]) for depth in range(len(arguments), -1, -1)]
        return joined(*before, any_of(ways), *after)

    def _open(self, path: tuple[str, ...], key: str) -> str:
        extras = [f"( {joined(extra, _COMMA)} )?" for extra in self._extras(path)]
        return joined('"{"', GAP, *extras, _member(key))

    def _close(self, path: tuple[str, ...]) -> str:
        extras = [f"( {joined(_COMMA, extra)} )?" for extra in self._extras(path)]
        return joined(*extras, GAP, '"}"')

    def _extras(self, path: tuple[str, ...]) -> list[str]:
        """What else may stand in the object at a path: constants and the id."""
        calls = self._calls
        found: list[str] = []
        if not path:
            found += [joined(_member(key), _constant(value)) for key, value in calls.constants]
        if calls.id and calls.id[:-1] == path:
            found.append(joined(_member(calls.id[-1]), '"\\""', _ID, '"\\""'))
        return found

    def _headed(self, write: Callable[[Tool], str]) -> str:
        """The name and what stands beside it, then the arguments as `write` has them."""
        pairs = list(zip(self._calls.fields, self._calls.between, strict=True))
        at = self._calls.fields.index("name")
        beside = {"id": _ID, "index": _INDEX}
        before = [part for field, text in pairs[:at] for part in (beside[field], marker(text))]

        def header(tool: Tool) -> list[str]:
            known = beside | {"name": literal(tool.name)}
            return [part for field, text in pairs[at:] for part in (known[field], marker(text))]

        ways = (joined(*header(tool), write(tool)) for tool in self.tools)
        return joined(*before, any_of(ways))

    def _named(self, rules: Rules) -> str:
        return self._headed(lambda tool: joined(SPACE, self._arguments(rules, tool)))

    def _tagged(self, rules: Rules) -> str:
        return self._headed(lambda tool: self._parameters(rules, tool))

    def _parameters(self, rules: Rules, tool: Tool) -> str:
        parameter = self._calls.parameter
        assert parameter is not None
        separator = marker(parameter.separator)
        start = marker(parameter.start)
        properties = tool.properties
        if properties is None:
            value = joined(literal(parameter.middle), self._raw(rules))
            if parameter.quoted:
                value = joined(literal(parameter.middle), rules.json({}), marker(parameter.end))
            one = rules.add(joined(start, _FREE_KEY, value))
            return rules.add(f"( {joined(one, f'( {joined(separator, one)} )*')} )?")
        keys = [key for key in properties if self._can_be_key(key)]

        def write(key: str) -> str:
            return joined(start, literal(key), self._value(rules, tool, key))

        return rules.members(keys, tool.required, separator, write)

    def _can_be_key(self, key: str) -> bool:
        parameter = self._calls.parameter
        assert parameter is not None
        if not key or key != key.strip() or len(key) > _LONGEST_NAME:
            return False
        others = (middle for _, middle in parameter.other_middles)
        middles = (_first(each) for each in (parameter.middle, *others))
        return all((key + stop).find(stop) == len(key) for stop in middles if stop)

    def _value(self, rules: Rules, tool: Tool, key: str) -> str:
        """What stands behind the key of one argument, up to and with its end."""
        parameter = self._calls.parameter
        assert parameter is not None
        schema = tool.of_property(key)
        kinds = kinds_of(schema)
        middle, end = parameter.middle, parameter.end
        if parameter.quoted:
            return joined(literal(middle), rules.json(schema), marker(end))
        if kinds and "string" not in kinds:
            return joined(self._by_kind(rules, schema, kinds), marker(end))
        choices = schema.get("enum")
        if "const" in schema:
            choices = [schema["const"]]
        if kinds == {"string"} and isinstance(choices, list) and 0 < len(choices) <= 500:
            texts = [each for each in choices if isinstance(each, str) and _first(end) not in each]
            if texts:
                ways = any_of(literal(middle + text + end.rstrip()) for text in texts)
                return joined(ways, SPACE if end != end.rstrip() else "")
        return joined(literal(middle), self._raw(rules))

    def _by_kind(self, rules: Rules, schema: Schema, kinds: frozenset[str]) -> str:
        """A value that is no text, behind what announces its kind."""
        parameter = self._calls.parameter
        assert parameter is not None
        middles = {parameter.middle_of(kind) for kind in kinds}
        if len(middles) == 1:
            value = _literal_value(rules, schema, quotes=False)
            return joined(literal(middles.pop()), value)
        ways: list[str] = []
        for middle in sorted(middles):
            types = sorted(kind for kind in kinds if parameter.middle_of(kind) == middle)
            value = _literal_value(rules, {**schema, "type": types}, quotes=False)
            ways.append(joined(literal(middle), value))
        return any_of(ways)

    def _raw(self, rules: Rules) -> str:
        """A text as it is, up to and with the marker behind it."""
        parameter = self._calls.parameter
        assert parameter is not None
        chunk = _first(parameter.end)
        rest = parameter.end.lstrip().removeprefix(chunk)
        return joined(rules.until(chunk), marker(rest))

    def _python(self, rules: Rules) -> str:
        return any_of(
            joined(literal(tool.name + "("), self._keywords(rules, tool), '")"')
            for tool in self.tools
        )

    def _keywords(self, rules: Rules, tool: Tool) -> str:
        properties = tool.properties
        if properties is None:
            key = rules.add(f'KEY "=" {rules.json({})}')
            return f"( {key} )?"
        keys = [key for key in properties if _is_argument(key)]

        def write(key: str) -> str:
            return joined(
                literal(key + "="), _literal_value(rules, tool.of_property(key), quotes=True)
            )

        return rules.members(keys, tool.required, joined('","', SPACE), write)


def _literal_value(rules: Rules, schema: Schema, *, quotes: bool) -> str:
    """A value in JSON, or in Python where that writes it with other words.

    With `quotes` a text may also stand in single ones.
    """
    kinds = kinds_of(schema)
    choices = schema.get("enum")
    ways = [rules.json(schema)]
    if "boolean" in kinds and not schema.keys() & {"enum", "const"}:
        ways += ['"True"', '"False"']
    if "null" in kinds:
        ways.append('"None"')
    if quotes and kinds == {"string"}:
        if isinstance(choices, list):
            plain = [each for each in choices if isinstance(each, str) and each.isalnum()]
            ways += [literal(f"'{each}'") for each in plain]
        elif not schema.keys() & _NARROWING:
            ways.append("PYTHON_TEXT")
    return any_of(ways)


def kinds_of(schema: Schema) -> frozenset[str]:
    """The types that a schema names; empty where it says nothing plain of them."""
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return frozenset(each for each in declared if isinstance(each, str))
    values = schema.get("enum")
    if "const" in schema:
        values = [schema["const"]]
    if isinstance(values, list) and values:
        return frozenset(map(_kind, values))
    options: Any = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list) and all(isinstance(each, dict) for each in options):
        found = [kinds_of(each) for each in options]
        if all(found):
            return frozenset().union(*found)
    return frozenset()


def _kind(value: Any) -> str:
    match value:
        case str():
            return "string"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case list():
            return "array"
        case dict():
            return "object"
        case _:
            return "null"


def _is_argument(key: str) -> bool:
    """Whether Python takes a word for the name of an argument, as it stands."""
    return (
        key.isidentifier()
        and not keyword.iskeyword(key)
        and unicodedata.normalize("NFKC", key) == key
    )


def _constant(value: str) -> str:
    """A value that is always the same, unless it counts."""
    return f'"\\"" {_INDEX} "\\""' if value.isdecimal() else literal(_json(value))


def _member(key: str) -> str:
    return joined(literal(_json(key)), GAP, '":"', GAP)


def _json(text: str) -> str:
    return literal(text) or '""'
