"""Models that are loaded although nobody asks: the operator wants them at the start, or always."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ..protocol.errors import PronkError
from ..protocol.messages.library import ModelResolved, ResolveModel
from ..protocol.questions import Questions
from ..protocol.settings import Settings

_log = logging.getLogger(__name__)

_AGAIN_SECONDS = 30.0
"""A name may come to stand for another model, or for one at all."""


class Standing:
    """Finds out which models these are. `on_found` hears of a name's digest when it is new."""

    def __init__(
        self,
        settings: Settings,
        store: Questions,
        on_found: Callable[[str, str | None], None],
    ) -> None:
        self._store = store
        self._on_found = on_found
        self._digests: dict[str, str] = {}
        self._names = [
            name
            for name, limits in settings.model_limits.items()
            if limits.preload or limits.min_replicas
        ]
        self._looking = asyncio.create_task(self._look_for_ever()) if self._names else None

    def close(self) -> None:
        """Looks no more."""
        if self._looking:
            self._looking.cancel()

    async def _look_for_ever(self) -> None:
        while True:
            for name in self._names:
                await self._resolve(name)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _resolve(self, name: str) -> None:
        try:
            answer = await self._store.ask(lambda call: ResolveModel(call, name))
        except PronkError as error:
            _log.warning("%s is to be loaded and cannot be: %s", name, error.message)
            return
        before = self._digests.get(name)
        if isinstance(answer, ModelResolved) and answer.digest != before:
            self._digests[name] = answer.digest
            self._on_found(answer.digest, before)
