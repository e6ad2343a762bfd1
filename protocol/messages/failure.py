"""How an error travels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ..errors import Code, PronkError
from .fields import Number, Text


@dataclass(frozen=True, slots=True)
class Failure:
    """A `PronkError` as data: for the person who asked, see `protocol.errors`."""

    code: Code
    message: Text
    retry_after: Number | None = None

    @classmethod
    def of(cls, error: PronkError) -> Self:
        """The failure that carries `error`."""
        return cls(error.code, error.message, error.retry_after)

    def error(self) -> PronkError:
        """The exception again, on the other side."""
        return PronkError(self.code, self.message, retry_after=self.retry_after)
