"""Takes looks at files and templates, each in a process that may die of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ....protocol.errors import Code, PronkError
from .finding import Lacking, Look, LookAtFile, LookAtTemplate
from .headers import Headers
from .read_headers import Detail
from .reading import read, read_one
from .templates import Templates, found_out
from .throwaway import Died

_log = logging.getLogger(__name__)

FILES = 4
"""Files that are looked at at the same time, beside those of lists."""
TEMPLATES = 4
"""The same for templates. A hostile one takes ten seconds of computing."""

_LISTED = 32
"""Files that one process looks at for a list."""
_MOST_TRIES = 8
"""Of one question: more than any needs whose files stay the same."""
T = TypeVar("T")


class Looker:
    """Has found out what `headers` and `templates` lack. Lives on one event loop.

    Who lacks the same at the same time waits for one look. Looks at templates, at files for one
    answer, and at files for lists do not wait for each other.
    """

    def __init__(self, headers: Headers, templates: Templates) -> None:
        self._headers = headers
        self._templates = templates
        self._under_way: dict[Look, asyncio.Task[None]] = {}
        self._files = asyncio.Semaphore(FILES)
        self._lists = asyncio.Semaphore(1)
        self._threads = ThreadPoolExecutor(TEMPLATES, "store-template")

    def close(self) -> None:
        """Ends what is under way."""
        for task in self._under_way.values():
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def answered(self, ask: Callable[[bool], Awaitable[T]]) -> T:
        """What `ask` returns once nothing is lacking. It is told whether to be content with what is
        known.

        Raises what `ask` raises, and `PronkError` where something cannot be found out.
        """
        content = False
        for _ in range(_MOST_TRIES):
            try:
                return await ask(content)
            except Lacking as lacking:
                await self.take(lacking.looks, lacking.seconds)
                content = lacking.seconds is not None
        raise PronkError(
            Code.UNAVAILABLE,
            "the model's files change while they are looked at; try again",
            retry_after=1.0,
        )

    async def template(self, source: str) -> dict[str, Any]:
        """What is known of a template, found out now if need be. Raises `PronkError`."""

        async def known(_: bool) -> dict[str, Any]:
            return self._templates.known(source)

        return await self.answered(known)

    async def take(self, looks: Iterable[Look], seconds: float | None = None) -> None:
        """Takes looks, or waits for those who do, but not longer than `seconds`: the rest is done
        all the same. Raises `PronkError` unless there is such a limit.
        """
        wanted = dict.fromkeys(looks)
        new = [look for look in wanted if look not in self._under_way]
        listed = [
            look for look in new if isinstance(look, LookAtFile) and look.detail is Detail.FACTS
        ]
        for start in range(0, len(listed), _LISTED):
            some = listed[start : start + _LISTED]
            self._begin(some, self._look_through(some))
        for look in new:
            match look:
                case LookAtTemplate():
                    self._begin([look], self._look_at_template(look))
                case LookAtFile() if look.detail is not Detail.FACTS:
                    self._begin([look], self._look_at_file(look))
                case _:
                    pass
        tasks = {self._under_way[look] for look in wanted}
        done, _ = await asyncio.wait(tasks, timeout=seconds)
        if seconds is None:
            for task in done:
                task.result()

    def _begin(self, looks: Sequence[Look], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._under_way |= dict.fromkeys(looks, task)
        task.add_done_callback(lambda task: self._ended(looks, task))

    def _ended(self, looks: Sequence[Look], task: asyncio.Task[None]) -> None:
        for look in looks:
            del self._under_way[look]
        if not task.cancelled() and (error := task.exception()):
            _log.info("a look at the library failed: %s", error)

    async def _look_at_template(self, look: LookAtTemplate) -> None:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, found_out, look.source)
        self._templates.keep(look.source, found)

    async def _look_at_file(self, look: LookAtFile) -> None:
        async with self._files:
            await read_one(self._headers, look)

    async def _look_through(self, looks: Sequence[LookAtFile]) -> None:
        """Looks at many files with few processes."""
        left = list(looks)
        async with self._lists:
            while left:
                try:
                    await read(self._headers, left)
                except Died:
                    # It may have been one before that used up what all of them had.
                    await read_one(self._headers, left.pop(0))
