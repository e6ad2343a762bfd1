"""From a template's text to tokens, as Go's text/template cuts it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from .errors import GoTemplateError


class Kind(Enum):
    """What a token is."""

    TEXT = auto()
    """Text between actions, trimmed already."""
    LEFT = auto()
    """The beginning of an action."""
    RIGHT = auto()
    """The end of an action."""
    SPACE = auto()
    KEYWORD = auto()
    DOT = auto()
    NIL = auto()
    BOOL = auto()
    FIELD = auto()
    """`.Name`; the value has no dot."""
    VARIABLE = auto()
    """`$` or `$name`, with the dollar."""
    IDENTIFIER = auto()
    STRING = auto()
    CHARACTER = auto()
    NUMBER = auto()
    OPEN = auto()
    CLOSE = auto()
    PIPE = auto()
    DECLARE = auto()
    ASSIGN = auto()
    COMMA = auto()
    END = auto()
    """The end of the source."""


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the source, and the line on which it begins."""

    kind: Kind
    text: str
    line: int


KEYWORDS = frozenset(
    ("block", "break", "continue", "define", "else", "end", "if", "range", "template", "with")
)
_SPACES = " \t\r\n"
_ENDS = frozenset(" \t\r\n.,|:)(")
"""What may follow a name, beside the end of its action."""
_LITERALS = {
    '"': (Kind.STRING, re.compile(r'"(?:\\[^\n]|[^"\\\n])*"'), "a string"),
    "`": (Kind.STRING, re.compile(r"`[^`]*`"), "a raw string"),
    "'": (Kind.CHARACTER, re.compile(r"'(?:\\[^\n]|[^'\\\n])*'"), "a character"),
}
_SPACE = re.compile(r"[ \t\r\n]+")
_NUMBER = re.compile(
    r"[+-]?(?:0[xX][0-9a-fA-F_]*(?:\.[0-9a-fA-F_]*)?(?:[pP][+-]?[0-9_]*)?"
    r"|0[oO][0-7_]*(?:\.[0-7_]*)?"
    r"|0[bB][01_]*(?:\.[01_]*)?"
    r"|[0-9_]*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9_]*)?)i?"
)
_NAME = re.compile(r"\w*")
_SINGLE = {
    "=": Kind.ASSIGN,
    "|": Kind.PIPE,
    ",": Kind.COMMA,
}


def tokens(source: str) -> list[Token]:
    """All tokens of a template, the last an `END`. Raises `GoTemplateError`."""
    return _Lexer(source).run()


class _Lexer:
    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._line = 1
        self._tokens: list[Token] = []

    def run(self) -> list[Token]:
        source = self._source
        while (left := source.find("{{", self._at)) >= 0:
            inside = left + 2
            trims = source[inside : inside + 1] == "-" and source[inside + 1 : inside + 2] in _WS
            text = source[self._at : left]
            self._emit_text(text.rstrip(_SPACES) if trims else text, text)
            self._at = inside + 2 if trims else inside
            if source.startswith("/*", self._at):
                self._comment()
            else:
                self._emit(Kind.LEFT, "{{")
                self._line += source.count("\n", inside, self._at)
                self._action()
        rest = source[self._at :]
        self._emit_text(rest, rest)
        self._emit(Kind.END, "")
        return self._tokens

    def _emit(self, kind: Kind, text: str) -> None:
        self._tokens.append(Token(kind, text, self._line))

    def _emit_text(self, text: str, whole: str) -> None:
        if text:
            self._emit(Kind.TEXT, text)
        self._line += whole.count("\n")

    def _error(self, reason: str) -> GoTemplateError:
        return GoTemplateError(self._line, reason)

    def _move(self, end: int) -> str:
        """Passes over the source up to `end`, and returns it."""
        passed = self._source[self._at : end]
        self._line += passed.count("\n")
        self._at = end
        return passed

    def _right_end(self) -> int | None:
        """Where the text behind `}}` begins, if that stands here, with or without a trim marker."""
        source, at = self._source, self._at
        if source.startswith("}}", at):
            return at + 2
        if source[at : at + 1] in _WS and source.startswith("-}}", at + 1):
            spaces = _SPACE.match(source, at + 4)
            return spaces.end() if spaces else at + 4
        return None

    def _comment(self) -> None:
        end = self._source.find("*/", self._at + 2)
        if end < 0:
            raise self._error("a comment has no end")
        self._move(end + 2)
        right = self._right_end()
        if right is None:
            raise self._error("behind the end of a comment stands more than }}")
        self._move(right)

    def _action(self) -> None:
        """One action, its beginning passed already."""
        depth = 0
        source = self._source
        begun = self._line
        while True:
            if (right := self._right_end()) is not None:
                if depth:
                    raise self._error("a parenthesis is not closed")
                self._emit(Kind.RIGHT, "}}")
                self._move(right)
                return
            if self._at >= len(source):
                raise GoTemplateError(begun, "an action has no end")
            first = source[self._at]
            if first in _SPACES:
                self._spaces()
            elif first == "(":
                depth += 1
                self._take(Kind.OPEN, 1)
            elif first == ")":
                depth -= 1
                if depth < 0:
                    raise self._error("a parenthesis is closed that was not opened")
                self._take(Kind.CLOSE, 1)
            else:
                self._operand(first)

    def _take(self, kind: Kind, length: int) -> None:
        self._emit(kind, self._source[self._at : self._at + length])
        self._move(self._at + length)

    def _spaces(self) -> None:
        found = _SPACE.match(self._source, self._at)
        assert found
        end = found.end()
        if self._source.startswith("-}}", end):  # the last space belongs to the trim marker
            end -= 1
        if end > self._at:
            self._take(Kind.SPACE, end - self._at)

    def _operand(self, first: str) -> None:
        source, at = self._source, self._at
        following = source[at + 1 : at + 2]
        if first in _LITERALS:
            kind, form, what = _LITERALS[first]
            found = form.match(source, at)
            if found is None:
                raise self._error(f"{what} has no end")
            self._take(kind, found.end() - at)
        elif first == ":":
            if following != "=":
                raise self._error("a colon stands without =")
            self._take(Kind.DECLARE, 2)
        elif first in _SINGLE:
            self._take(_SINGLE[first], 1)
        elif first == "$":
            self._name(Kind.VARIABLE, 1)
        elif first == "." and not ("0" <= following <= "9"):
            self._name(Kind.FIELD, 1)
        elif first in "+-.0123456789":
            self._number()
        elif _is_name(first):
            self._name(Kind.IDENTIFIER, 0)
        else:
            raise self._error(f"{first!r} has no meaning in an action")

    def _number(self) -> None:
        found = _NUMBER.match(self._source, self._at)
        assert found
        end = found.end()
        if end < len(self._source) and (_is_name(self._source[end]) or self._source[end] in "+-"):
            raise self._error(f"{self._source[self._at : end + 1]} is no number")
        self._take(Kind.NUMBER, end - self._at)

    def _name(self, kind: Kind, prefix: int) -> None:
        """A field, variable, keyword or function, `prefix` characters before its letters."""
        source = self._source
        found = _NAME.match(source, self._at + prefix)
        assert found
        end = found.end()
        for place in range(self._at + prefix, end):
            if not _is_name(source[place]):
                end = place
                break
        if end < len(source) and source[end] not in _ENDS and not source.startswith("}}", end):
            raise self._error(f"{source[end]!r} may not stand behind a name")
        word = source[self._at : end]
        length = end - self._at
        if kind is Kind.FIELD:
            if length == 1:
                kind = Kind.DOT
        elif kind is Kind.IDENTIFIER:
            if word in KEYWORDS:
                kind = Kind.KEYWORD
            elif word == "nil":
                kind = Kind.NIL
            elif word in ("true", "false"):
                kind = Kind.BOOL
        self._emit(kind, word[1:] if kind is Kind.FIELD else word)
        self._at = end


_WS = frozenset(_SPACES)


def _is_name(letter: str) -> bool:
    return letter == "_" or letter.isalpha() or letter.isdecimal()
