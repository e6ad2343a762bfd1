"""Runs a program on one file, in a process that may die of it.

The process gets the file as its standard input, a pipe to answer on, and next to no environment:
no token, no path, no socket of ours. It bounds itself further (`confinement`), because limits on
memory would otherwise have to leave room for what it imports. What it says is bounded here, and
believed in nothing but its form.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, cast

from ....protocol.errors import Code, PronkError
from ....protocol.process import SUPERVISOR_PID

_log = logging.getLogger(__name__)

MAX_LINE = 16 * 1024
"""Bytes of one thing that a program says, where nothing else is known."""

NONSENSE = "made the process that read it say what makes no sense"
FAILED = "made the process that read it fail"


class Died(Exception):
    """The process ended without a result. The text completes "it …" and tells no more than that."""


class TookTooLong(Died):
    """It was ended because its time on the clock was over, which may have been the machine's fault
    and not the file's.
    """


def open_file(path: Path) -> int:
    """A descriptor to read a file of the library. Raises `PronkError` where it cannot be read."""
    try:
        return descriptor_of(path)
    except OSError as error:
        raise PronkError(
            Code.INTERNAL, f"a file of the library cannot be read ({error.strerror})"
        ) from None


def descriptor_of(path: Path) -> int:
    """The same. Raises OSError."""
    # O_NONBLOCK: a FIFO in the file's place must not block.
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


async def descriptor_soon(path: Path) -> int:
    """The same, from a thread. Whoever is cancelled meanwhile leaves nothing open."""
    opening = asyncio.ensure_future(asyncio.to_thread(descriptor_of, path))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close)
        raise


def _close(opened: asyncio.Future[int]) -> None:
    if not opened.cancelled() and not opened.exception():
        os.close(opened.result())


async def run(
    program: str,
    arguments: Sequence[str],
    file: int,
    *,
    seconds: float,
    keep: Sequence[int] = (),
    heard: Callable[[dict[str, Any]], Awaitable[None]] | None = None,
) -> dict[str, Any]:
    """Runs a module on `file`; returns the last of the JSON objects that it writes, one a line, and
    passes each of the others to `heard`. As `listen` does, otherwise.
    """
    last: dict[str, Any] | None = None

    async def take(line: bytes) -> None:
        nonlocal last
        if last is not None and heard:
            await heard(last)
        last = _object(line)

    await listen(program, arguments, file, seconds=seconds, keep=keep, heard=take)
    if last is None:
        raise Died(FAILED)
    return last


async def listen(
    program: str,
    arguments: Sequence[str],
    file: int,
    *,
    seconds: float,
    heard: Callable[[bytes], Awaitable[None]],
    keep: Sequence[int] = (),
    longest: int = MAX_LINE,
) -> None:
    """Runs a module, whose name `program` is in full, on `file`, and passes each line that it
    writes to `heard`, which raises ValueError for what makes no sense. A line may have `longest`
    bytes.

    The process inherits the descriptors to `keep`. It is killed after `seconds`, when the caller
    is cancelled, and when `heard` raises. Raises `Died`, and OSError where none can be started.
    """
    async with _pipe(longest) as (lines, end):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-m", program, *arguments),
            stdin=file,
            stdout=end.fileno(),
            stderr=asyncio.subprocess.DEVNULL,
            env={SUPERVISOR_PID: str(os.getpid())},
            cwd="/",
            pass_fds=keep,
        )
        end.close()
        try:
            async with asyncio.timeout(seconds):
                while line := await lines.readline():
                    await heard(line)
                status = await process.wait()
        except TimeoutError:
            raise TookTooLong("takes too long") from None
        except (ValueError, RecursionError):  # a line without an end, or one that is no JSON
            raise Died(NONSENSE) from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
    if status:
        _log.warning("%s ended with status %s", program, status)
        raise Died(FAILED)


@contextlib.asynccontextmanager
async def _pipe(longest: int) -> AsyncIterator[tuple[asyncio.StreamReader, FileIO]]:
    """A pipe of our own: asyncio's would have us wait for whoever else holds its other end."""
    read, write = os.pipe()
    lines = asyncio.StreamReader(longest)
    with FileIO(write, "w") as end:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), FileIO(read)
        )
        try:
            yield lines, end
        finally:
            transport.close()


def _object(line: bytes) -> dict[str, Any]:
    """Raises ValueError."""
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError
    return cast(dict[str, Any], value)
