"""The file that remembers which devices are drained.

All else that the scheduler knows it is told again after its death. This only an operator could say
again: who takes a device out of service relies on it until it is undone.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from ..protocol.errors import Code, PronkError

_log = logging.getLogger(__name__)


def read_drained(file: Path) -> set[str]:
    """Names of the drained devices; none where the file is missing or cannot be understood."""
    try:
        names: object = json.loads(file.read_bytes())
    except FileNotFoundError:
        return set()
    except (OSError, ValueError) as error:
        _log.error("which devices are drained is unreadable, all of them are used: %s", error)
        return set()
    return {str(name) for name in names} if isinstance(names, list) else set()  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def write_drained(file: Path, names: set[str]) -> None:
    """Replaces the file as a whole. Raises `PronkError` when that fails."""
    draft = file.with_suffix(".new")
    try:
        draft.write_text(json.dumps(sorted(names)))
        draft.replace(file)
    except OSError as error:
        raise PronkError(
            Code.INTERNAL, f"the state directory cannot be written: {error.strerror or error}"
        ) from None
