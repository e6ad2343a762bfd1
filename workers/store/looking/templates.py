"""What templates are, found out once for each."""

from __future__ import annotations

from typing import Any

import orjson

from ...conversation import analysis, confined
from ...conversation.analysis import key_of
from ..files import UNCHANGING, Remembered
from .finding import Lacking, LookAtTemplate

_REMEMBERED_BYTES = 32 * 1024 * 1024
_LONGEST = 1024 * 1024
"""Bytes of what is known of one template, so that it can be told with a model's facts."""


class Templates:
    """Remembers what was found out about templates. For any thread; nothing here waits."""

    def __init__(self) -> None:
        self._known: Remembered[bytes] = Remembered(_REMEMBERED_BYTES, weigh=len)

    def known(self, source: str) -> dict[str, Any]:
        """What is known of a template, as its analysis says it. Raises `Lacking`."""
        found = self.by_key(key_of(source))
        if found is None:
            raise Lacking(LookAtTemplate(source))
        return found

    def by_key(self, key: str) -> dict[str, Any] | None:
        """The same, by the key of the source; None where nothing is known."""
        found = self._known.get(key, UNCHANGING)
        return None if found is None else orjson.loads(found)

    def keep(self, source: str, found: dict[str, Any]) -> None:
        """Remembers what was found out."""
        said = orjson.dumps(found)
        if len(said) > _LONGEST:
            said = orjson.dumps({"broken": "there is too much to be said of it"})
        self._known.keep(key_of(source), UNCHANGING, said)


def found_out(source: str) -> dict[str, Any]:
    """What the process says that tries a template. Blocking, for some tenths of a second; where the
    template is hostile, for ten.
    """
    try:
        return confined.run(analysis.__name__, {"source": source}, given=len(source))
    except confined.TooMuch as error:
        return {"broken": str(error)}
