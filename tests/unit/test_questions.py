"""Asking again until somebody answers, and for no longer than it makes sense."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pronk.protocol import questions
from pronk.protocol.channels import Router
from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.library import ListModels, ModelList
from pronk.protocol.questions import Questions
from pronk.protocol.state import StateDirectory


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "REPEAT_SECONDS", 0.05)


async def test_nobody_there_is_told(state: StateDirectory):
    asker = Questions(state.store)
    with pytest.raises(PronkError, match="does not answer") as caught:
        await asker.ask(ListModels, 0.1)
    assert caught.value.code is Code.UNAVAILABLE
    asker.close()


async def test_a_time_in_which_the_asker_stood_still_is_not_held_against_the_other(
    state: StateDirectory,
):
    asked: list[Any] = []

    def hear(peer: str, question: ListModels, body: bytes) -> None:
        asked.append(question)
        if len(asked) == 1:
            time.sleep(0.6)  # both live on this loop, and the first answer is lost
        else:
            router.send(peer, ModelList(question.call, []))

    router = Router(state.store, hear)
    asker = Questions(state.store)
    assert (await asker.ask(ListModels, 0.5)).models == []
    assert len({question.call for question in asked}) == 1
    asker.close()
    router.close()
