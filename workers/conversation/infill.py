"""How a model that can fill in is asked for what stands between two texts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Infill:
    """The control tokens of such a model: before the first text, between them, and at the end,
    where the model begins to write.
    """

    prefix: int
    suffix: int
    middle: int

    def around(self, before: list[int], behind: list[int]) -> list[int]:
        """The question for what stands between `before` and `behind`."""
        return [self.prefix, *before, self.suffix, *behind, self.middle]
