"""A text that is still growing, and is read from its beginning.

Written as generators that yield where they need more text.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

Wait = Generator[None, None, None]


class Impossible(Exception):
    """What stands there is no call."""


class Growing:
    """What there is of the text, and where its reader has come to."""

    def __init__(self) -> None:
        self._text: str = ""
        self._position: int = 0
        self._ended: bool = False

    def _peek(self) -> Generator[None, None, str]:
        """The next character that is not white space; empty at the end."""
        while True:
            while self._position < len(self._text) and self._text[self._position].isspace():
                self._position += 1
            if self._position < len(self._text) or self._ended:
                return self._text[self._position : self._position + 1]
            yield

    def _skip(self, literal: str) -> Generator[None, None, bool]:
        """Passes a text, and white space before it; whether it stood there."""
        start = self._position
        yield from self._peek()
        while True:
            rest = self._text[self._position : self._position + len(literal)]
            if rest == literal:
                self._position += len(literal)
                return True
            if self._ended or not literal.startswith(rest):
                self._position = start
                return False
            yield

    def _until(self, stops: Sequence[str], limit: int) -> Generator[None, None, str]:
        """The text up to the first of `stops`, which is not passed. Raises `Impossible`."""
        start = searched = self._position
        longest = max(map(len, stops))
        while True:
            found = [at for stop in stops if (at := self._text.find(stop, searched)) >= 0]
            searched = max(start, len(self._text) - longest)
            if found:
                # One that is cut off may begin before one that is whole.
                end = min(found)
                if self._ended or end + longest <= len(self._text):
                    if end - start > limit:
                        raise Impossible
                    self._position = end
                    return self._text[start:end]
                searched = start
            elif self._ended or len(self._text) - start > limit + longest:
                raise Impossible
            yield

    def _all(self, chunks: Sequence[str]) -> Generator[None, None, bool]:
        start = self._position
        for chunk in chunks:
            if not (yield from self._skip(chunk)):
                self._position = start
                return False
        return bool(chunks)

    def _more(self) -> Wait:
        """Waits for more text. Raises `Impossible` at the end."""
        if self._ended:
            raise Impossible
        yield
