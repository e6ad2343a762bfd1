"""What the frontend asks the store about the model library."""

from __future__ import annotations

from typing import TypeVar

from ..protocol.errors import Code, PronkError
from ..protocol.messages.library import (
    ListModels,
    ModelList,
    ModelResolved,
    ModelShown,
    ModelSummary,
    ResolveModel,
    ShowModel,
)
from ..protocol.questions import Questions

_Answer = TypeVar("_Answer")


class Library:
    """The model library, seen through the store. Answers while the scheduler is down, too.

    Every method raises `PronkError`: the store's own, or UNAVAILABLE when it does not answer.
    """

    def __init__(self, endpoint: str) -> None:
        self._questions = Questions(endpoint)

    def close(self) -> None:
        """Ends the connection."""
        self._questions.close()

    async def resolve(self, name: str) -> ModelResolved:
        """What a name stands for now."""
        return _of(ModelResolved, await self._questions.ask(lambda call: ResolveModel(call, name)))

    async def list(self) -> list[ModelSummary]:
        """All models, the most recently modified first."""
        return _of(ModelList, await self._questions.ask(ListModels)).models

    async def show(self, name: str, verbose: bool) -> ModelShown:
        """Everything there is to show of a model."""
        answer = await self._questions.ask(lambda call: ShowModel(call, name, verbose))
        return _of(ModelShown, answer)


def _of(kind: type[_Answer], answer: object) -> _Answer:
    if not isinstance(answer, kind):
        raise PronkError(Code.INTERNAL, "the model library gave an answer of another kind")
    return answer
