"""Finds where in an answer something opens, and which tokens would open it wrongly.

A token may reach beyond the text that opens something. Whether what it has there can stand there is
known beforehand for every token of the vocabulary, so that while text is free nothing has to be
computed but for the few tokens that would be wrong right now.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..token_table import TokenTable

T = TypeVar("T")

Tokens = NDArray[np.int64]

_NONE: Tokens = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Opening(Generic[T]):
    """A text that opens something."""

    text: bytes
    meaning: T
    allows: Callable[[bytes], bool]
    """Whether a token may have this behind the text; what it has may be nothing."""


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """Something that was opened."""

    opening: Opening[T]
    before: bytes
    after: bytes


class Openings(Generic[T]):
    """What may open at one kind of place. Shared by all answers; never changes."""

    def __init__(self, table: TokenTable, openings: Sequence[Opening[T]]) -> None:
        """Looks through the vocabulary once for each last byte of a text."""
        by_text = {opening.text: opening for opening in openings if opening.text}
        self._by_text = by_text
        longest_first = sorted(by_text, key=len, reverse=True)
        self._any = re.compile(b"|".join(map(re.escape, longest_first)) or b"(?!)")
        firsts = b"".join(re.escape(text[:1]) for text in by_text)
        self._suspect = re.compile(b"[" + firsts + b"]" if firsts else b"(?!)").search
        self._prefixes = frozenset(text[:end] for text in by_text for end in range(1, len(text)))
        self._longest = max(map(len, self._prefixes), default=0)
        self._forbidden = _forbidden(table, by_text)
        self._always = self._forbidden.get(b"", _NONE)

    def __bool__(self) -> bool:
        return bool(self._by_text)

    def suspects(self, text: bytes) -> bool:
        """Whether something may begin within a text."""
        return self._suspect(text) is not None

    def search(self, text: bytes) -> Found[T] | None:
        """What is opened first within a text."""
        found = self._any.search(text)
        if found is None:
            return None
        return Found(self._by_text[found[0]], text[: found.start()], text[found.end() :])

    def match(self, text: bytes) -> Found[T] | None:
        """What is opened at the beginning of a text."""
        found = self._any.match(text)
        return Found(self._by_text[found[0]], b"", text[found.end() :]) if found else None

    def begins(self, text: bytes) -> bool:
        """Whether a whole text is the beginning of one that opens something."""
        return text in self._prefixes

    def end_of(self, text: bytes) -> bytes:
        """As much of the end of a text as may belong to what opens something."""
        for start in range(max(0, len(text) - self._longest), len(text)):
            if text[start:] in self._prefixes:
                return text[start:]
        return b""

    def wrong_after(self, text: bytes) -> Tokens:
        """Tokens that may not follow a text, of which the end is enough."""
        if not text:
            return self._always
        ends = (text[start:] for start in range(max(0, len(text) - self._longest), len(text)))
        found = [tokens for end in ends if (tokens := self._forbidden.get(end)) is not None]
        return np.concatenate([*found, self._always]) if found else self._always


def _forbidden(table: TokenTable, openings: Mapping[bytes, Opening[Any]]) -> dict[bytes, Tokens]:
    """By what stands there already, the tokens that complete an opening and may not."""
    wanted: dict[bytes, list[tuple[bytes, bytes]]] = defaultdict(list)
    """By what a token must begin with: the text it completes, and what of that is before it."""
    for text in openings:
        for cut in range(1, len(text)):
            wanted[text[cut:]].append((text, text[:cut]))
    lengths = sorted({len(text) for text in openings})
    wrong: dict[bytes, set[int]] = defaultdict(set)
    known: dict[tuple[bytes, bytes], bool] = {}

    def allows(text: bytes, rest: bytes) -> bool:
        if (text, rest) not in known:
            known[text, rest] = openings[text].allows(rest)
        return known[text, rest]

    for last in {text[-1] for text in openings}:
        for token, ends in table.containing(last):
            piece = table.tokens[token]
            for end in ends:
                head, rest = piece[:end], piece[end:]
                for text, before in wanted.get(head, ()):
                    if not allows(text, rest):
                        wrong[before].add(token)
                for length in lengths:
                    text = head[-length:]
                    if text in openings and not allows(text, rest):
                        wrong[b""].add(token)
    return {before: _array(tokens) for before, tokens in wrong.items()}


def _array(tokens: Iterable[int]) -> Tokens:
    return np.array(sorted(tokens), np.int64)
