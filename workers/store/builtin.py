"""The built-in demo model, in the form in which the library has its models."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from ...protocol.logs import RateLimitedLog
from ...protocol.names import ModelName, parse_name
from . import demo
from .files import Remembered, stamp_of
from .layout import Config, StoredModel

NAME: ModelName = parse_name("demo")

_log = logging.getLogger(__name__)


class BuiltinModel:
    """`demo:latest` as it lies in the package. Read-only, and part of no library."""

    def __init__(self, weights: Path = demo.WEIGHTS) -> None:
        self.weights = weights
        self._digests: Remembered[str] = Remembered(1)
        self._noted = RateLimitedLog(_log)

    def model(self) -> StoredModel | None:
        """The model; None, and a line in the log, when this installation lacks its file.

        Its digest is that of the file. It counts as modified when it was installed.
        """
        try:
            status = self.weights.stat()
            stamp = stamp_of(status)
            digest = self._digests.get(self.weights, stamp)
            if digest is None:
                with self.weights.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                self._digests.keep(self.weights, stamp, digest)
        except OSError as error:
            self._noted.warning("no demo model", f"its file cannot be read: {error.strerror}")
            return None
        return StoredModel(
            name=NAME,
            digest=digest,
            modified_at=max(0.0, status.st_mtime),
            size=status.st_size,
            config=Config(format="gguf"),
            weights=self.weights,
            blob=digest,
        )
