"""Models that were fetched and found to be none: they are not fetched again at once."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict

from ....protocol.errors import Code, PronkError
from ....protocol.names import ModelName

KEPT_SECONDS = 600.0
"""How long a verdict stands: a hundred gigabytes are not fetched once more for each try, and a
registry that has mended its model under the same name has another manifest by then anyway."""
_MOST = 256

_now = time.monotonic


class Verdicts:
    """Why models were refused, by their names and manifests. The oldest are forgotten first."""

    def __init__(self) -> None:
        self._reasons: OrderedDict[tuple[str, str], tuple[float, str]] = OrderedDict()

    def keep(self, name: ModelName, manifest: bytes, reason: str) -> None:
        """Remembers why a model was refused, in the words of the error."""
        self._reasons[_key(name, manifest)] = _now() + KEPT_SECONDS, reason
        while len(self._reasons) > _MOST:
            self._reasons.popitem(last=False)

    def look_up(self, name: ModelName, manifest: bytes) -> None:
        """Raises `PronkError` where this very model was refused a while ago."""
        until, reason = self._reasons.get(_key(name, manifest), (0.0, ""))
        if _now() < until:
            raise PronkError(Code.REGISTRY_FAILED, reason)


def _key(name: ModelName, manifest: bytes) -> tuple[str, str]:
    return name.canonical, hashlib.sha256(manifest).hexdigest()
