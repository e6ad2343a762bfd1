"""The one place where a template is looked at before it becomes part of a model."""

from __future__ import annotations

import asyncio
import tempfile

from ....protocol.errors import Code, PronkError
from . import inspect_template
from .inspection import plain
from .throwaway import Died, run

MAX_TEMPLATE = 1024 * 1024
"""Bytes in UTF-8."""

_MEMORY = 512 * 1024 * 1024
_WALL_SECONDS = 2.0 * inspect_template.SECONDS


async def check_template(source: str) -> None:
    """Raises `PronkError` (invalid_request) for a template that no model can be run with: one that
    is too large, that can be read neither as Go's nor as Jinja, or that whoever reads it dies of.
    """
    content = source.encode()
    if len(content) > MAX_TEMPLATE:
        raise PronkError(
            Code.INVALID_REQUEST,
            f"template: it has {len(content)} bytes; the limit is {MAX_TEMPLATE // 1024} KiB",
        )
    with tempfile.TemporaryFile(buffering=0) as file:
        await asyncio.to_thread(file.write, content)
        file.seek(0)
        try:
            said = await run(
                "inspect_template", [str(_MEMORY)], file.fileno(), seconds=_WALL_SECONDS
            )
        except Died as died:
            raise PronkError(
                Code.INVALID_REQUEST, f"template: it cannot be used: it {died}"
            ) from None
    if said.get("good") is not True:
        raise PronkError(Code.INVALID_REQUEST, plain(said.get("refused")))
