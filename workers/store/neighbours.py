"""Signs of another server on the same library, which may remove what Pronk is about to need."""

from __future__ import annotations

import logging
import os
import re
import time
from pathlib import Path

import psutil

from ...protocol.logs import RateLimitedLog

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 60.0
_WARN_SECONDS = 600.0
_PARTIAL = re.compile(r"sha256-[0-9a-f]{64}-partial(-\d+)?")
"""Ollama's unfinished downloads, which lie among the blobs."""


class Neighbours:
    """Looks for them now and then, and warns in the log. Not for several threads at once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._noted = RateLimitedLog(_log, _WARN_SECONDS)
        self._next = 0.0

    def look(self) -> None:
        """Looks, unless it was done just now."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _LOOK_SECONDS
        if sign := self._running() or self._downloading():
            self._noted.warning(
                "another server uses the library",
                f"{sign} on {self._root}. It removes blobs that no manifest names when it starts, "
                "pulls and creates; Pronk keeps what is unfinished apart, and never removes what "
                "it has not written",
            )

    def blobs_vanished(self, count: int) -> None:
        """Blobs of Pronk's were removed by somebody else."""
        self._noted.warning(
            "blobs vanished",
            f"{count} blobs in {self._root} were removed by another program while their model was "
            "written; they are put back",
        )

    def _downloading(self) -> str | None:
        try:
            names = os.listdir(self._root / "blobs")  # noqa: PTH208
        except OSError:
            return None
        if any(_PARTIAL.fullmatch(name) for name in names):
            return "there is an unfinished download of Ollama's"
        return None

    def _running(self) -> str | None:
        for process in psutil.process_iter(["cmdline"]):
            command = process.info["cmdline"] or []
            if (
                len(command) > 1
                and Path(command[0]).name == "ollama"
                and command[1] == "serve"
                and self._is_its_library(process)
            ):
                return f"`ollama serve` runs as process {process.pid}"
        return None

    def _is_its_library(self, process: psutil.Process) -> bool:
        """Whether it works here: as its environment says, or else by the place of its default."""
        try:
            environment = process.environ()
        except (psutil.Error, OSError):
            return self._root.parts[-2:] == (".ollama", "models")
        home = environment.get("HOME", "")
        library = environment.get("OLLAMA_MODELS") or Path(home, ".ollama", "models")
        try:
            return Path(library).samefile(self._root)
        except OSError:
            return False
