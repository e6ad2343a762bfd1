"""A rendering: what was written, which variables there are, and how much more may be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import Fault, GoTemplateError

MAX_DEPTH = 90
"""Blocks within blocks as they are rendered, those of called templates among them."""
MAX_VARIABLES = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a rendering may take."""

    steps: int
    """Statements, loops, fields and calls, about a microsecond each."""
    output: int
    """Characters of the text."""
    built: int
    """Characters of all that is written or made on the way."""


class Run:
    """What a rendering has at hand. Several templates may write to one, one after the other."""

    __slots__ = ("_built", "_limits", "_room", "depth", "names", "out", "steps", "values")

    def __init__(self, limits: Limits) -> None:
        self.names: list[str] = []
        """Variables, the innermost last."""
        self.values: list[Any] = []
        self.out: list[str] = []
        self.depth = 0
        self.steps = limits.steps
        self._limits = limits
        self._room = limits.output
        self._built = limits.built

    def begin(self, data: Any) -> None:
        """Before a template is rendered: `data` is all that it sees."""
        self.names, self.values, self.depth = ["$"], [data], 0

    def write(self, text: str) -> None:
        """Adds to the output. Raises `Fault` when that is too much."""
        self._room -= len(text)
        if self._room < 0:
            raise Fault("it writes far more than it was given")
        self.out.append(text)

    def take(self, steps: int) -> None:
        """Counts steps. Raises `Fault` when they are too many."""
        self.steps -= steps
        if self.steps < 0:
            raise Fault("it takes too many steps")

    def build(self, size: int) -> None:
        """Counts characters that are about to be made. Raises `Fault` when they are too many.

        They count as steps, too, since making them takes time.
        """
        self._built -= size
        if self._built < 0:
            raise Fault("it takes too much memory")
        if size > 256:
            self.take(size >> 8)

    def declare(self, name: str, value: Any) -> None:
        """A new variable."""
        if len(self.names) >= MAX_VARIABLES:
            raise Fault(f"it has more than {MAX_VARIABLES} variables")
        self.names.append(name)
        self.values.append(value)

    def place(self, name: str) -> int:
        """Where the innermost variable of this name is."""
        names = self.names
        for place in range(len(names) - 1, -1, -1):
            if names[place] == name:
                return place
        raise Fault(f"variable {name[:40]} was not set")

    def enter(self, line: int) -> None:
        """Counts a block within another."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise GoTemplateError(line, f"it nests more than {MAX_DEPTH} blocks")

    def text(self) -> str:
        """What was written; bytes that are no UTF-8 are U+FFFD in it."""
        text = "".join(self.out)
        if text.isascii():
            return text
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
