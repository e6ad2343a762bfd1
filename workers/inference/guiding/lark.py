"""Small parts of grammars in llguidance's Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .tools import Schema, guided

SPACE = "S?"
"""White space between markers, as much as a model likes within bounds."""

GAP = "W?"
"""White space between two tokens of JSON."""

OPTIONS = '%llguidance {"no_forcing": true}\n'
"""Where only one text can follow, llguidance would allow only the tokens that it cuts it into, and
never a control token, although that is how models write their markers."""

_SHARED = r"""
S: /[ \t\r\n]{1,16}/
W: / |\r?\n[ \t]{0,24}/
ANY: /(?s:.*)/
KEY: /[a-z]{1,20}_[a-z]{1,20}/
PYTHON_TEXT: /'([^'\\\x00-\x1f\x7f]|\\[\\'nrt])*'/
"""

_ESCAPED = r"""
e_value: E_STRING | E_NUMBER | "true" | "false" | "null" | e_object | e_array
e_object: "{" " "? (e_member (" "? "," " "? e_member)*)? " "? "}"
e_member: E_STRING " "? ":" " "? e_value
e_array: "[" " "? (e_value (" "? "," " "? e_value)*)? " "? "]"
E_STRING: /\\"([^"\\\x00-\x1f\x7f]|\\\\[bfnrt]|\\\\\\"|\\\\\\\\)*\\"/
E_NUMBER: /-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?/
E_INTEGER: /-?(0|[1-9][0-9]{0,15})/
"""
"""JSON within a string of JSON."""


_LOOSE = r"""
l_value: l_text | NUMBER | "true" | "false" | "null" | l_object | l_array
l_object: "{" (l_member (L_COMMA l_member)*)? "}"
l_member: L_KEY ":" l_value
l_array: "[" (l_value (L_COMMA l_value)*)? "]"
L_COMMA: /,[ ]?/
L_KEY: /[A-Za-z_][A-Za-z0-9_.\-]{0,63}/
NUMBER: /-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?/
"""
"""Objects with bare keys, and texts between markers."""


def literal(text: str) -> str:
    """A text as Lark writes it; nothing for none."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def marker(text: str) -> str:
    """A marker, whose white space may be any."""
    parts = [
        SPACE if part.isspace() else literal(part) for part in re.split(r"(\s+)", text) if part
    ]
    return " ".join(parts)


def joined(*parts: str) -> str:
    """Parts behind each other."""
    words: list[str] = []
    for part in parts:
        if part.startswith(SPACE) and words and words[-1].endswith(SPACE):
            part = part.removeprefix(SPACE).lstrip()
        if part:
            words.append(part)
    return " ".join(words)


def any_of(parts: Iterable[str]) -> str:
    """One of the parts."""
    return f"( {' | '.join(parts)} )"


class Rules:
    """The rules of one grammar."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}
        self._known: dict[str, str] = {}
        self._escapes = False
        self._quote = ""

    def add(self, body: str, *, options: str = "") -> str:
        """The name of a rule with this body."""
        key = options + body
        if key not in self._known:
            name = f"r{len(self._known)}"
            self._known[key] = name
            self._rules[name + options] = body
        return self._known[key]

    def json(self, schema: Schema) -> str:
        """A value of JSON by a schema."""
        return self.add(f"%json {guided(schema)}")

    def until(self, end: str) -> str:
        """Any text up to the first `end`, and that."""
        return self.add(f"ANY {literal(end)}", options="[lazy]")

    def members(
        self,
        keys: Iterable[str],
        required: frozenset[str],
        separator: str,
        write: Callable[[str], str],
    ) -> str:
        """Each of `keys` once at most, in their order, as `write` has it; may be nothing."""
        first = rest = ""
        for key in reversed(list(keys)):
            one = self.add(write(key))
            following = joined(separator, one, rest)
            beginning = joined(one, rest)
            if key in required:
                first, rest = beginning, following
            else:
                first = self.add(f"{beginning} | {first}") if first else f"({beginning})?"
                rest = self.add(f"({following}) | {rest}") if rest else f"({following})?"
            first, rest = self.add(first), self.add(rest)
        return first

    def escaped(
        self, schema: Schema, properties: Mapping[str, Any] | None, required: frozenset[str]
    ) -> str:
        """An object that is written within a string of JSON: its keys, and values of simple kinds.

        `properties` are None where the schema does not list all there are.
        """
        self._escapes = True
        if properties is None:
            return "e_object"

        def write(key: str) -> str:
            return f'{_quoted(key)} " "? ":" " "? {self._simple(properties[key])}'

        if not properties:
            return '"{}"'
        inner = self.members(properties, required, '" "? "," " "?', write)
        return f'"{{" " "? {inner} " "? "}}"'

    def loose(
        self,
        quote: str,
        properties: Mapping[str, Any] | None,
        required: frozenset[str],
    ) -> str:
        """An object with bare keys, and with texts between `quote`: its keys, and simple values.

        `properties` are None where the schema does not list all there are.
        """
        self._quote = quote
        if properties is None:
            return "l_object"

        def write(key: str) -> str:
            return joined(literal(key + ":"), self._loose_value(properties[key]))

        return joined('"{"', self.members(properties, required, "L_COMMA", write), '"}"')

    def _loose_value(self, schema: Any) -> str:
        if not isinstance(schema, dict):
            return "l_value"
        kind, choices = schema.get("type"), schema.get("enum")
        if kind == "string" and isinstance(choices, list) and 0 < len(choices) <= 200:
            texts = [each for each in choices if isinstance(each, str) and self._quote not in each]
            return any_of(literal(self._quote + each + self._quote) for each in texts or [""])
        if kind in ("integer", "number", "boolean", "null"):
            return self.json(schema)
        kinds = {"string": "l_text", "object": "l_object", "array": "l_array"}
        return kinds.get(kind, "l_value") if isinstance(kind, str) else "l_value"

    def _simple(self, schema: Any) -> str:
        """A value within a string of JSON, as far as its kind is plain to see."""
        if not isinstance(schema, dict):
            return "e_value"
        choices = schema.get("enum")
        if isinstance(choices, list) and 0 < len(choices) <= 200:
            return any_of(map(_quoted, choices))
        kinds = {
            "string": "E_STRING",
            "integer": "E_INTEGER",
            "number": "E_NUMBER",
            "boolean": '("true" | "false")',
            "null": '"null"',
            "object": "e_object",
            "array": "e_array",
        }
        kind = schema.get("type")
        return kinds.get(kind, "e_value") if isinstance(kind, str) else "e_value"

    def text(self, start: str) -> str:
        """The grammar that begins with `start`."""
        if self._quote:
            quote = literal(self._quote)
            start = f"{start}\nl_text: {quote} {self.until(self._quote)}{_LOOSE}"
        rules = [f"start: {start}", *(f"{name}: {body}" for name, body in self._rules.items())]
        return OPTIONS + "\n".join(rules) + _SHARED + (_ESCAPED if self._escapes else "")


def _quoted(value: Any) -> str:
    """A value of JSON, within a string of JSON."""
    inner = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return literal(json.dumps(inner, ensure_ascii=False)[1:-1])
