"""Quantizing a model's weights, in a process that may die of them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ....protocol.errors import Code, PronkError
from ..disk import clear_errors
from ..looking.inspection import plain
from ..looking.throwaway import Died, open_file, run
from . import quantize_file
from .levels import file_type

_FUNCTIONS = re.compile(r"^(?:(?:[\w:~]+|failed to quantize): )+")
"""What llama.cpp puts before its reasons."""

_STEP = 64 * 1024 * 1024
"""Bytes that are hashed before anybody may interrupt."""


async def quantize(
    source: Path,
    target: Path,
    level: str,
    *,
    require_room: Callable[[int], None],
    progress: Callable[[int], None],
) -> None:
    """Writes the weights of `source`, quantized to `level`, to the new file `target`.

    `require_room` is asked once the size of the result is known; `progress` hears how many bytes of
    the source are done. Raises `PronkError`.
    """
    with clear_errors():
        output = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        file = open_file(source)
    except PronkError:
        os.close(output)
        raise

    async def heard(said: dict[str, Any]) -> None:
        size, done = said.get("size"), said.get("done")
        if type(size) is int:
            await asyncio.to_thread(require_room, size)
        if type(done) is int:
            progress(done)

    try:
        size = os.fstat(file).st_size
        said = await run(
            quantize_file.__name__,
            [str(output), str(file_type(level)), str(os.cpu_count() or 1), str(size)],
            file,
            seconds=float(quantize_file.cpu_seconds(size)),
            keep=[output],
            heard=heard,
        )
        if said.get("quantized") is True:
            return
        reason = _FUNCTIONS.sub("", plain(said.get("refused")))
    except Died as died:
        reason = f"it {died}"
    finally:
        os.close(file)
        os.close(output)
    # All that llama.cpp knows of a full disk is that it could not write.
    await asyncio.to_thread(require_room, 1)
    raise PronkError(Code.INVALID_REQUEST, f"the model cannot be quantized: {reason}")


async def digest_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal. Can be cancelled within a fraction of a second."""
    state = hashlib.sha256()
    done = 0

    def step() -> int:
        # Opened anew each time: nothing is closed beneath a thread that still reads, when whoever
        # waits for it is cancelled.
        with path.open("rb", buffering=0) as file:
            file.seek(done)
            part = file.read(_STEP)
        state.update(part)
        return len(part)

    while length := await asyncio.to_thread(step):
        done += length
    return state.hexdigest()
