"""What the engine's thread says that is no message by itself."""

from __future__ import annotations

from typing import NamedTuple

from ...protocol.messages.embedding import Embedded


class WithNumbers(NamedTuple):
    """A message, and the numbers that are its second frame."""

    message: Embedded
    numbers: bytes
