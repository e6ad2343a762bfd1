"""Values as models write them: JSON, and what is meant by almost JSON.

What is mended is only what can mean one thing: a comma before a closing bracket, single quotes
around a text, Python's words for true, false and none, a line break within a text, and closing
brackets that are missing at the very end. Everything else is refused.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

MAX_DEPTH = 100
"""Deepest nesting of arguments."""

_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[A-Za-z]+")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_WORDS = {
    "true": True,
    "false": False,
    "null": None,
    "True": True,
    "False": False,
    "None": None,
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_HEX = re.compile(r"[0-9a-fA-F]{4}")


class NotAValue(ValueError):
    """The text means nothing, or not one thing."""


def _refuse(constant: str) -> Any:
    raise NotAValue(constant)


_decoder = json.JSONDecoder(strict=False, parse_constant=_refuse)


def load(text: str, *, ended: bool = True) -> Any:
    """The value that a text means. Raises `NotAValue`.

    `ended` is false where the text may have been cut off, so that a number at its end may lack
    digits.
    """
    text = text.strip()
    try:
        value, end = _decoder.raw_decode(text)
        if end == len(text):
            return value
    except (ValueError, RecursionError):
        pass
    reader = _Reader(text, mending=True, ended=ended)
    value = reader.value(0)
    reader.space()
    if reader.position < len(text):
        raise NotAValue("more than one value")
    return value


def carried(value: Any, depth: int = 0) -> Any:
    """A value as every client can be sent it. Raises `NotAValue`.

    Halves of characters become U+FFFD, and integers of more than 64 bits the nearest number.
    """
    if depth > MAX_DEPTH:
        raise NotAValue("nested too deeply")
    if isinstance(value, str):
        return _surrogates(value)
    if isinstance(value, list):
        return [carried(each, depth + 1) for each in value]
    if isinstance(value, dict):
        return {_surrogates(key): carried(each, depth + 1) for key, each in value.items()}
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return carried(_nearest(value))
    if isinstance(value, float) and not math.isfinite(value):
        raise NotAValue("a number without bounds")
    return value


def _nearest(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise NotAValue("a number without bounds") from None


def load_at(text: str, position: int) -> tuple[Any, int]:
    """The whole value that begins at a position, and where it ends. Raises `NotAValue`."""
    try:
        return _decoder.raw_decode(text, position)
    except (ValueError, RecursionError):
        reader = _Reader(text, position=position, mending=False)
        return reader.value(0), reader.position


class _Reader:
    """Reads JSON and what is close to it."""

    def __init__(self, text: str, *, position: int = 0, mending: bool, ended: bool = True) -> None:
        self._text = text
        self.position = position
        self._mending = mending
        self._ended = ended

    def space(self) -> str:
        """Skips white space; returns the next character, or nothing at the end."""
        found = _SPACE.match(self._text, self.position)
        self.position = found.end() if found else self.position
        return self._text[self.position : self.position + 1]

    def value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise NotAValue("nested too deeply")
        match self.space():
            case "{":
                return self._object(depth)
            case "[":
                return self._list(depth)
            case '"' | "'" as quote:
                return self._string(quote)
            case _:
                return self._scalar()

    def _scalar(self) -> Any:
        if found := _WORD.match(self._text, self.position):
            if found[0] not in _WORDS:
                raise NotAValue("an unknown word")
            self.position = found.end()
            return _WORDS[found[0]]
        found = _NUMBER.match(self._text, self.position)
        if not found or (found.end() == len(self._text) and not self._ended):
            raise NotAValue("no value")
        self.position = found.end()
        number = found[0]
        try:
            return float(number) if set(number) & set(".eE") else int(number)
        except ValueError as error:
            raise NotAValue("a number with too many digits") from error

    def _object(self, depth: int) -> dict[str, Any]:
        self.position += 1
        result: dict[str, Any] = {}
        while not self._closes("}"):
            quote = self.space()
            if quote not in ('"', "'") or not quote:
                raise NotAValue("no key")
            key = self._string(quote)
            if self.space() != ":":
                raise NotAValue("a key without a value")
            self.position += 1
            result[key] = self.value(depth + 1)
            self._comma("}")
        return result

    def _list(self, depth: int) -> list[Any]:
        self.position += 1
        result: list[Any] = []
        while not self._closes("]"):
            result.append(self.value(depth + 1))
            self._comma("]")
        return result

    def _closes(self, bracket: str) -> bool:
        found = self.space()
        if found == bracket:
            self.position += 1
            return True
        return not found and self._at_end()

    def _comma(self, bracket: str) -> None:
        found = self.space()
        if found == ",":
            self.position += 1
        elif found != bracket and not (not found and self._at_end()):
            raise NotAValue("no comma")

    def _at_end(self) -> bool:
        """Whether brackets may be missing here."""
        if not self._mending:
            raise NotAValue("it has no end")
        return True

    def _string(self, quote: str) -> str:
        parts: list[str] = []
        position = self.position + 1
        while True:
            found = _PLAIN[quote].match(self._text, position)
            end = found.end() if found else position
            parts.append(self._text[position:end])
            if end >= len(self._text):
                raise NotAValue("a text has no end")
            if self._text[end] == quote:
                self.position = end + 1
                return _surrogates("".join(parts))
            escaped = self._text[end + 1 : end + 2]
            position = end + 2
            if escaped == "u" and (digits := _HEX.match(self._text, position)):
                parts.append(chr(int(digits[0], 16)))
                position += 4
            elif escaped in _ESCAPES:
                parts.append(_ESCAPES[escaped])
            elif escaped and escaped in "\"'\\/":
                parts.append(escaped)
            else:
                raise NotAValue("an unknown escape")


def _surrogates(text: str) -> str:
    """Pairs of surrogates, as JSON writes what is beyond 16 bits, become the character meant."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Scan:
    """Finds the end of a JSON object that grows. Looks at each character once."""

    _OUTSIDE = re.compile(r"[\s,:0-9+\-.truefalsnTFNoEyIi]*")
    _INSIDE = _PLAIN

    def __init__(self, position: int) -> None:
        """`position` is where its first bracket stands."""
        self._position = position
        self._quote = ""
        self._brackets: list[str] = []
        self._opened = position
        self._last: str | None = None
        self.broken = False
        """Whether it stopped at something that cannot belong to a value."""
        self.keys: list[str] = []
        """The keys of the object itself so far, as they are written."""

    def end(self, text: str) -> int | None:
        """Where the object ends, or where it is broken; None while neither is to be seen."""
        position = self._position
        while True:
            if self._quote:
                found = self._INSIDE[self._quote].match(text, position)
                position = found.end() if found else position
                if position >= len(text):
                    break
                if text[position] == "\\":
                    if position + 1 >= len(text):
                        break
                    position += 2
                    continue
                self._quote = ""
                if len(self._brackets) == 1:
                    self._last = text[self._opened : position]
                position += 1
                continue
            found = self._OUTSIDE.match(text, position)
            if found and self._last is not None and (run := found[0].lstrip()):
                if run[0] == ":":
                    self.keys.append(self._last)
                self._last = None
            position = found.end() if found else position
            if position >= len(text):
                break
            character = text[position]
            if character in "\"'":
                self._quote = character
                self._opened = position + 1
            elif character in "{[":
                self._brackets.append("}" if character == "{" else "]")
            elif self._brackets and character == self._brackets[-1]:
                self._brackets.pop()
                if not self._brackets:
                    self._position = position + 1
                    return position + 1
            else:
                self.broken = True
                self._position = position
                return position
            position += 1
        self._position = position
        return None
