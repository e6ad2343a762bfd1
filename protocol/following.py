"""Following what takes long: a change of the library, from the question to the one answer.

The question is repeated all the time. That says that somebody still waits, and attaches a process
that was restarted meanwhile to where the one before it was; the asker notices nothing but a pause.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from .errors import Code, PronkError
from .messages.changes import Changed, Progress, StopCall
from .messages.library import CallFailed
from .questions import REPEAT_SECONDS, Questions

UNANSWERED = 15
"""Questions in a row without a word after which nobody is there: 30 seconds. They are counted, and
not the seconds, because this process may have been the one that stood still."""

MOST_WAITING = 256
"""Lines that wait for a reader who is slower than the change."""

SUCCESS = "success"
"""The last line of every change that succeeded."""

KEEP_ALIVE_SECONDS = 15.0
"""After so long without news the last line is passed on again: proxies end silent connections."""


@dataclass(slots=True)
class Steps:
    """All that was said since the last time, and the end if it has come."""

    progress: list[Progress]
    changed: Changed | None


class Following:
    """One change under way. Leaving its `with` block before its end stops it, as far as nobody
    else waits for the same.

    A slow reader gets of each status and digest only what was said last, and never loses the last
    line of all. That one comes with the end and not before: who reads it may leave at once.
    """

    def __init__(self, questions: Questions, question: Callable[[str], Any]) -> None:
        self._questions = questions
        self._call = questions.begin(self._heard)
        self._question = question(self._call)
        self._unanswered = 0
        self._waiting: dict[tuple[str, str], Progress] = {}
        self._last: Progress | None = None
        self._said_at = 0.0
        """Monotonic time at which a line was passed on."""
        self._end: Changed | PronkError | None = None
        self._ready = asyncio.Event()
        self.repeated = False
        """Whether the question was sent more than once."""
        self._asking = asyncio.create_task(self._ask())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._asking.cancel()
        self._questions.end(self._call)
        if not isinstance(self._end, Changed):
            self._questions.send(StopCall(self._call))

    async def take(self) -> Steps:
        """What was said, as soon as something was. Nothing follows steps with `changed`.

        Raises the `PronkError` that ended the change, once what was said before it has been taken.
        """
        await self._ready.wait()
        progress, self._waiting = list(self._waiting.values()), {}
        if self._end is None:
            self._ready.clear()
        if isinstance(self._end, PronkError):
            if not progress:
                raise self._end
            return Steps(progress, None)
        return Steps(progress, self._end)

    async def outcome(self) -> Changed:
        """The end, for whom nothing before it matters. Raises the `PronkError` that it was."""
        while True:
            if changed := (await self.take()).changed:
                return changed

    async def _ask(self) -> None:
        while self._unanswered < UNANSWERED:
            self._unanswered += 1
            self._questions.send(self._question)
            await asyncio.sleep(REPEAT_SECONDS)
            self.repeated = True
        self._finish(self._questions.silent())

    def _heard(self, message: Any) -> None:
        if self._end is not None:
            return
        self._unanswered = 0
        match message:
            case Progress():
                self._add(message)
            case Changed():
                self._finish(message)
            case CallFailed():
                self._finish(message.failure.error())
            case _:
                fault = "the model library gave an answer of another kind"
                self._finish(PronkError(Code.INTERNAL, fault))

    def _add(self, progress: Progress) -> None:
        if progress.status == SUCCESS:
            return  # `_finish` says it
        moment = time.monotonic()
        if progress == self._last and moment - self._said_at < KEEP_ALIVE_SECONDS:
            return  # the answer to a repeated question
        self._last, self._said_at = progress, moment
        self._wait(progress)
        self._ready.set()

    def _finish(self, end: Changed | PronkError) -> None:
        if self._end is not None:
            return
        if isinstance(end, Changed):
            self._wait(Progress(self._call, SUCCESS))
        self._end = end
        self._asking.cancel()
        self._ready.set()

    def _wait(self, progress: Progress) -> None:
        """Keeps a line for the reader."""
        key = progress.status, progress.digest
        self._waiting.pop(key, None)  # so that what was said last stands last
        self._waiting[key] = progress
        if len(self._waiting) > MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
