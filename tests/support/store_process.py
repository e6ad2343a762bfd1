"""The store as a process of its own, as supervisord runs it, and a line to it as frontends have."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pronk.protocol.questions import Questions
from pronk.protocol.state import StateDirectory


class StoreProcess:
    """One life of the store, over the library and the state directory below `root`."""

    def __init__(self, process: asyncio.subprocess.Process, questions: Questions) -> None:
        self._process = process
        self.questions = questions
        """Asks it. What is asked before it listens waits for that."""

    async def ended(self) -> int:
        """Waits until it ends by itself; returns how."""
        return await self._process.wait()

    async def kill(self) -> int:
        """Ends it with SIGKILL where it is; returns how it ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        return await self._process.wait()


def library_of(root: Path) -> Path:
    """Where the library of the stores on `root` lies."""
    return root / "models"


def log_of(root: Path) -> Path:
    """Where all stores on `root` write what they have to say."""
    return root / "store.log"


@asynccontextmanager
async def store_process(
    root: Path, program: tuple[str, ...] = ("pronk.workers", "store"), **settings: str
) -> AsyncIterator[StoreProcess]:
    """A store that was just started; it is killed at the end, if it was not before.

    The path of `root` is to be a short one: Unix sockets have their places below it.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PRONK_", "OLLAMA_"))
    }
    state = StateDirectory(root / "state")
    state.prepare()
    with log_of(root).open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", *program),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={
                **inherited,
                "PRONK_STATE": str(state.root),
                "PRONK_MODELS": str(library_of(root)),
                **settings,
            },
        )
    questions = Questions(state.store)
    store = StoreProcess(process, questions)
    try:
        yield store
    finally:
        questions.close()
        await store.kill()
