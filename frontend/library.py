"""What the frontend asks the store about the model library, and what it has it change there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..protocol.errors import Code, PronkError
from ..protocol.following import Following
from ..protocol.messages.changes import (
    Changed,
    CopyModel,
    CreateModel,
    DeleteModel,
    PullModel,
    PushModel,
)
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

    def end_all(self, error: PronkError) -> None:
        """Ends every question and every change that is under way."""
        self._questions.fail_all(error)

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

    def pull(self, name: str, insecure: bool) -> Following:
        """Fetches a model from its registry."""
        return Following(self._questions, lambda call: PullModel(call, name, insecure))

    def push(self, name: str, insecure: bool) -> Following:
        """Brings a model to its registry."""
        return Following(self._questions, lambda call: PushModel(call, name, insecure))

    def create(self, order: Callable[[str], CreateModel]) -> Following:
        """Makes a model of another one, or of files. `order` is called with the call's id."""
        return Following(self._questions, order)

    async def copy(self, source: str, destination: str) -> Changed:
        """Gives a model another name, too."""
        with Following(
            self._questions, lambda call: CopyModel(call, source, destination)
        ) as change:
            return await change.outcome()

    async def delete(self, name: str) -> Changed | None:
        """Removes a name. None where it is known only that it is gone now."""
        with Following(self._questions, lambda call: DeleteModel(call, name)) as change:
            try:
                return await change.outcome()
            except PronkError as error:
                if error.code is Code.NOT_FOUND and change.repeated:
                    return None  # a store that died since the first question had done it
                raise


def _of(kind: type[_Answer], answer: object) -> _Answer:
    if not isinstance(answer, kind):
        raise PronkError(Code.INTERNAL, "the model library gave an answer of another kind")
    return answer
