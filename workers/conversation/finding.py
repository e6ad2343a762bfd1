"""Finds texts, such as those of control tokens, within others."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator


class Beginnings:
    """Knows what some texts begin with, and are longer than."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = sorted(texts)

    def __contains__(self, text: str) -> bool:
        place = bisect_right(self._texts, text)  # behind the text itself
        return place < len(self._texts) and self._texts[place].startswith(text)


class Finder:
    """Finds texts, of which there may be thousands, within another."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(texts)
        seconds: dict[str, str] = {}
        for head in sorted({text[:2] for text in self._texts}):
            seconds[head[0]] = seconds.get(head[0], "") + re.escape(head[1:])
        heads = [f"{re.escape(c)}(?=[{those}])" for c, those in seconds.items() if those]
        heads += [re.escape(text) for text in self._texts if len(text) == 1]
        self._heads = re.compile("|".join(heads)) if heads else None
        lengths: dict[str, set[int]] = {}
        for text in self._texts:
            lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths = {head: sorted(known, reverse=True) for head, known in lengths.items()}

    def __bool__(self) -> bool:
        return bool(self._texts)

    def find(self, text: str) -> Iterator[tuple[int, str]]:
        """Wherever one begins, the longest of them that does, with the place."""
        for head in self._heads.finditer(text) if self._heads else ():
            start = head.start()
            for length in self._lengths.get(text[start : start + 2], ()):
                if (found := text[start : start + length]) in self._texts:
                    yield start, found
                    break
            else:
                if text[start] in self._texts:
                    yield start, text[start]
