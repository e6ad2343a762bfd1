"""What a file is, found out by a process that may die of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ....protocol.errors import Code, PronkError
from . import inspect_file
from .gguf_check import FileFacts
from .throwaway import Died, open_file, run

_FACTS = TypeAdapter(FileFacts)
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
        said = await run("inspect_file", [str(_MEMORY)], file, seconds=_WALL_SECONDS)
        return _FACTS.validate_python(said["facts"]) if "facts" in said else _refuse(said)
    except Died as died:
        reason = f"it {died}"
    except _Refused as refused:
        reason = str(refused)
    except ValidationError:
        reason = "it made the process that read it say what makes no sense"
    finally:
        os.close(file)
    raise PronkError(Code.INVALID_REQUEST, f"{what} cannot be used: {reason}")


class _Refused(Exception):
    pass


def _refuse(said: dict[str, Any]) -> FileFacts:
    raise _Refused(plain(said.get("refused")))


def plain(text: Any) -> str:
    """What a process gave for a reason, fit to be shown."""
    words = text if isinstance(text, str) and text else "it was given no reason"
    return "".join(c if c.isprintable() else "?" for c in words[:_SAID])
