"""What may be done with a model."""

from __future__ import annotations

from collections.abc import Iterable

from ...protocol.errors import Code, PronkError
from ...protocol.messages.library import ModelResolved


def require_capabilities(asked_for: str, model: ModelResolved, needed: Iterable[str]) -> None:
    """Raises INVALID_REQUEST, in Ollama's words, where the model cannot do what is needed.

    `asked_for` is the model's name as the caller wrote it; `needed` are capabilities in Ollama's
    words.
    """
    missing = [capability for capability in needed if capability not in model.capabilities]
    if missing:
        raise PronkError(
            Code.INVALID_REQUEST, f'"{asked_for}" does not support {", ".join(missing)}'
        )
