"""What the engine's thread says that is no message by itself, or says in two places."""

from __future__ import annotations

from typing import NamedTuple

from ...protocol.errors import Code
from ...protocol.messages.embedding import Embedded
from ...protocol.messages.failure import Failure

INCOMPUTABLE = Failure(
    Code.INTERNAL, "the model could not compute this request; see the server's log"
)


class WithNumbers(NamedTuple):
    """A message, and the numbers that are its body."""

    message: Embedded
    numbers: bytes
