"""Having found out, in processes, what an answer lacks.

Whoever answers questions does so in a few threads, which must not wait for a stranger's file or
template. So it raises `Lacking` where something is not known, and tries again when it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..files import Stamp
from .read_headers import Detail


@dataclass(frozen=True, slots=True)
class LookAtFile:
    """What a GGUF file's header says is to be found out."""

    path: Path
    stamp: Stamp
    """How the file was when this was found to be lacking: what is said is of that file."""
    detail: Detail


@dataclass(frozen=True, slots=True)
class LookAtTemplate:
    """What a template is, is to be found out."""

    source: str


Look = LookAtFile | LookAtTemplate


class Lacking(Exception):
    """A question cannot be answered before these looks were taken."""

    def __init__(self, *looks: Look, seconds: float | None = None) -> None:
        super().__init__(f"{len(looks)} looks are to be taken")
        self.looks = looks
        self.seconds = seconds
        """How long to wait for them; None for as long as it takes. Where the time is over, the
        question is answered by what is known."""
