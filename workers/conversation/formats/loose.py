"""Objects whose keys are bare, and whose texts stand between markers: `{city:<q>Lhasa<q>,days:3}`.

Nothing in such a text is escaped: it ends where its marker comes again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .values import MAX_DEPTH, NotAValue, load

_BARE = r"[^\s:,{}\[\]\"']{1,256}"
_KEY = re.compile(rf"\s*(?:({_BARE})|\"({_BARE})\")\s*:\s*")
_PLAIN = re.compile(r"[^\s,{}\[\]]{1,400}")
_SPACE = re.compile(r"\s*")


def can_be_key(text: str) -> bool:
    """Whether a key can be written in this notation, and be read again."""
    return re.fullmatch(_BARE, text) is not None


def load_loose(text: str, quote: str, *, ended: bool = True) -> dict[str, Any]:
    """The object that a text means. Raises `NotAValue`.

    `ended` is false where the text may have been cut off: brackets may be missing at its end, but
    not a part of a value.
    """
    reader = _Reader(text, quote, mending=not ended)
    value = reader.value(0)
    if not isinstance(value, dict) or reader.position < len(text.rstrip()):
        raise NotAValue("no object")
    return value


def write_loose(value: Any, quote: str) -> str:
    """A value in this notation."""
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{write_loose(each, quote)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(write_loose(each, quote) for each in value)}]"
    return {True: "true", False: "false", None: "null"}[value] if _is_word(value) else repr(value)


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)


class LooseScan:
    """Finds the end of such an object that grows. Looks at each character once, or twice."""

    def __init__(self, position: int, quote: str) -> None:
        """`position` is where its first bracket stands."""
        self._position = position
        self._quote = quote
        self._next = re.compile(rf"[{{}}\[\]]|{re.escape(quote)}")
        self._within = False
        self._depth = 0

    def end(self, text: str) -> int | None:
        """Where the object ends; None while that is not to be seen."""
        while True:
            if self._within:
                at = text.find(self._quote, self._position)
                found, behind = text[at : at + 1], at + len(self._quote)
            else:
                match = self._next.search(text, self._position)
                at = match.start() if match else -1
                found, behind = (match[0], match.end()) if match else ("", 0)
            if at < 0:
                # A marker may have begun.
                self._position = max(self._position, len(text) - len(self._quote) + 1)
                return None
            self._position = behind
            if self._within or found == self._quote:
                self._within = not self._within
            elif found in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth <= 0:
                    return behind


class _Reader:
    def __init__(self, text: str, quote: str, *, mending: bool) -> None:
        self._text = text
        self._quote = quote
        self._mending = mending
        self._last = len(text.rstrip())
        self.position = 0

    def value(self, depth: int) -> Any:
        """Raises `NotAValue`."""
        if depth > MAX_DEPTH:
            raise NotAValue("nested too deeply")
        if self._skip(self._quote):
            return self._text_value()
        if self._skip("{"):
            return self._object(depth)
        if self._skip("["):
            return self._list(depth)
        found = _PLAIN.match(self._text, self.position)
        if not found or (self._mending and found.end() == len(self._text)):
            raise NotAValue("no value")
        self.position = found.end()
        return load(found[0])

    def _text_value(self) -> str:
        end = self._text.find(self._quote, self.position)
        if end < 0:
            raise NotAValue("a text has no end")
        text = self._text[self.position : end]
        self.position = end + len(self._quote)
        return text

    def _object(self, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        while not self._closes("}"):
            key = self._key()
            result[key] = self.value(depth + 1)
            self._comma("}")
        return result

    def _key(self) -> str:
        if self._skip(self._quote):
            key = self._text_value()
            if not self._skip(":"):
                raise NotAValue("a key without a value")
            return key
        found = _KEY.match(self._text, self.position)
        if not found:
            raise NotAValue("no key")
        self.position = found.end()
        return found[1] or found[2]

    def _list(self, depth: int) -> list[Any]:
        result: list[Any] = []
        while not self._closes("]"):
            result.append(self.value(depth + 1))
            self._comma("]")
        return result

    def _skip(self, literal: str) -> bool:
        found = _SPACE.match(self._text, self.position)
        start = found.end() if found else self.position
        if not self._text.startswith(literal, start):
            return False
        self.position = start + len(literal)
        return True

    def _closes(self, bracket: str) -> bool:
        return self._skip(bracket) or (self._mending and self._is_at_end())

    def _comma(self, bracket: str) -> None:
        position = self.position
        if self._skip(",") or (self._mending and self._is_at_end()):
            return
        if not self._skip(bracket):
            raise NotAValue("no comma")
        self.position = position

    def _is_at_end(self) -> bool:
        return self.position >= self._last
