"""Having headers read by a process, and what becomes of those that it dies of."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack

from ....protocol.errors import Code, PronkError
from . import read_headers
from .finding import LookAtFile
from .headers import LONGEST, Headers
from .throwaway import FAILED, Died, TookTooLong, descriptor_soon, listen

_log = logging.getLogger(__name__)

_MEMORY = 512 * 1024 * 1024
"""Bytes: the longest header takes half of them."""
_WALL_SECONDS = 2.0 * read_headers.SECONDS


async def read_one(headers: Headers, look: LookAtFile) -> None:
    """Has `headers` remember what is in a file, or why it is of no use.

    Raises `PronkError` where that cannot be found out now.
    """
    try:
        await read(headers, [look])
    except TookTooLong:
        raise PronkError(
            Code.UNAVAILABLE,
            "the host is too busy to look at the model's file; try again",
            retry_after=5.0,
        ) from None
    except Died as died:
        headers.refuse(look, f"it {died}")


async def read(headers: Headers, looks: list[LookAtFile]) -> None:
    """The same for several, with one process. Takes those that are done from the list.

    Raises `Died`, perhaps of the first one that is left, and `PronkError` where no process can be
    started.
    """
    with ExitStack() as stack:
        descriptors: list[int] = []
        for look in list(looks):
            try:
                descriptor = await descriptor_soon(look.path)
            except OSError as error:
                headers.refuse(look, f"it cannot be read ({error.strerror})")
                looks.remove(look)
            else:
                stack.callback(os.close, descriptor)
                descriptors.append(descriptor)
        if not looks:
            return

        async def heard(line: bytes) -> None:
            if not looks:
                raise ValueError
            if not headers.take(looks[0], line):
                looks.pop(0)

        try:
            await listen(
                read_headers.__name__,
                [str(_MEMORY), looks[0].detail, *map(str, descriptors)],
                descriptors[0],
                seconds=_WALL_SECONDS,
                heard=heard,
                keep=descriptors,
                longest=LONGEST,
            )
        except OSError as error:
            _log.warning("no process can be started: %s", error)
            raise PronkError(
                Code.UNAVAILABLE,
                "the host has no room for a process that looks at the model's file; try again",
                retry_after=5.0,
            ) from None
    if looks:
        raise Died(FAILED)
