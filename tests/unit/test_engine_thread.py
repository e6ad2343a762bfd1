"""The thread of an engine tells of a load that fails, whatever ended it."""

from __future__ import annotations

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.workers.inference.thread import Computers, EngineThread


class Panic(BaseException):
    """What a panic in a library that is written in Rust arrives as."""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PronkError(Code.LOAD_FAILED, "no model"), "no model"),
        (ValueError("no model"), "an error in the server; see its log"),
        (Panic("no model"), "an error in the server; see its log"),
    ],
)
def test_a_load_that_fails_is_told_of(error: BaseException, told: str):
    failures: list[PronkError] = []

    def load() -> Computers:
        raise error

    def never(word: object) -> None:
        raise AssertionError(word)

    thread = EngineThread(load, never, failures.append, never, never)
    thread.start()
    thread.join()
    assert [(failure.code, failure.message) for failure in failures] == [(Code.LOAD_FAILED, told)]
