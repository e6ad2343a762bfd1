"""What a file is, found out by a process that may die of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from ....protocol.errors import Code, PronkError
from ....protocol.messages.fields import Count, Flag
from . import inspect_file
from .gguf_check import FileFacts, Kind
from .throwaway import NONSENSE, Died, open_file, run


class _Facts(BaseModel):
    """`FileFacts`, with the bounds in which they are believed."""

    kind: Kind
    architecture: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    quantization: Annotated[str, Field(pattern=r"^[A-Za-z0-9_ ]{1,32}$")]
    parameter_size: Annotated[str, Field(pattern=r"^[0-9][0-9.]{0,24}[BMK]?$")]
    full: Flag
    data: Count


_MEMORY = 512 * 1024 * 1024
"""Bytes: the longest header takes half of them."""
_WALL_SECONDS = 2.0 * inspect_file.SECONDS
_SAID = 300
"""Characters of a reason that are passed on."""


async def inspect(path: Path, what: str) -> FileFacts:
    """The facts of the file at `path`, which errors call `what`, such as "file 'x.gguf'".

    Raises `PronkError` (invalid_request) unless it is a whole GGUF file in all of its parts.
    """
    file = open_file(path)
    try:
        said = await run(inspect_file.__name__, [str(_MEMORY)], file, seconds=_WALL_SECONDS)
        if "facts" in said:
            return FileFacts(**_Facts.model_validate(said["facts"]).model_dump())
        reason = plain(said.get("refused"))
    except Died as died:
        reason = f"it {died}"
    except ValidationError:
        reason = f"it {NONSENSE}"
    finally:
        os.close(file)
    raise PronkError(Code.INVALID_REQUEST, f"{what} cannot be used: {reason}")


def plain(text: Any) -> str:
    """What a process gave for a reason, fit to be shown."""
    words = text if isinstance(text, str) and text else "it was given no reason"
    return "".join(c if c.isprintable() else "?" for c in words[:_SAID])
