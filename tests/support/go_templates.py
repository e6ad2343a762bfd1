"""Go templates, and what Go itself makes of them."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pronk.workers.conversation.gotemplate import functions

FOLDER = Path(__file__).parent.parent / "data/go_templates"


def load(name: str) -> Any:
    """A file of the folder as JSON."""
    return json.loads((FOLDER / name).read_text())


def families() -> dict[str, str]:
    """Templates in the style of well-known families, by name."""
    return {path.stem: path.read_text() for path in sorted((FOLDER / "families").iterdir())}


def stop_the_calendar(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the day on which the expected texts were written."""

    class Then(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Then:
            return cls(2001, 2, 3, 12)

    monkeypatch.setattr(functions, "datetime", Then)
