"""How a change of the library tells how far it is."""

from __future__ import annotations

from typing import Protocol

REMOVED = "removing unused layers"
"""Ollama's line, behind `writing manifest`, where blobs of the model that had the name went."""


class Report(Protocol):
    """Tells those who wait for a change. May be called at any rate, on the event loop only."""

    def __call__(
        self,
        status: str,
        digest: str = "",
        total: int | None = None,
        completed: int | None = None,
    ) -> None:
        """`status` is Ollama's line; `digest` (`sha256:…`) and bytes are those of what is moved."""
        ...
