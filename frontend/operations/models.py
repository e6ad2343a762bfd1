"""The models of the library: finding one by its name, listing them, showing one."""

from __future__ import annotations

from ...protocol.errors import Code, PronkError
from ...protocol.messages.generation import Caller
from ...protocol.messages.library import ModelResolved, ModelShown, ModelSummary
from ...protocol.names import MAX_NAME
from ...protocol.settings import Settings
from ..library import Library


class Models:
    """The library as callers see it."""

    def __init__(self, settings: Settings, library: Library) -> None:
        self._library = library
        demo = "; demo is always there" if settings.demo_model == "on" else ""
        self._remedy = f", try pulling it first (`pronk pull`, or POST /api/pull){demo}"

    async def resolve(self, caller: Caller, name: str) -> ModelResolved:
        """What `name` stands for now. Raises NOT_FOUND with what to do about it."""
        self._check(name)
        try:
            return await self._library.resolve(name)
        except PronkError as error:
            raise self._explained(name, error) from None

    async def list(self, caller: Caller) -> list[ModelSummary]:
        """All models, the most recently modified first."""
        return await self._library.list()

    async def show(self, caller: Caller, name: str, *, verbose: bool = False) -> ModelShown:
        """Everything there is to show of a model. Raises NOT_FOUND as `resolve` does."""
        self._check(name)
        try:
            return await self._library.show(name, verbose)
        except PronkError as error:
            raise self._explained(name, error) from None

    def _check(self, name: str) -> None:
        if not name.strip():
            raise PronkError(Code.INVALID_REQUEST, "model is required")
        if len(name) > MAX_NAME or not name.isprintable():
            raise self._not_found(name)

    def _explained(self, name: str, error: PronkError) -> PronkError:
        return self._not_found(name) if error.code is Code.NOT_FOUND else error

    def _not_found(self, name: str) -> PronkError:
        return not_found(name, self._remedy)


def not_found(name: str, remedy: str = "") -> PronkError:
    """The error in the words that Ollama's clients look for."""
    shown = name if len(name) <= 100 else name[:100] + "…"
    return PronkError(Code.NOT_FOUND, f"model '{shown}' not found{remedy}")
