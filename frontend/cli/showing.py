"""`pronk show`: what there is to know of a model, in sections or one part of it as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from . import wording
from .api import Api
from .listing import missing
from .terminal import say

PARTS = ("license", "modelfile", "parameters", "system", "template")
"""What can be asked for alone."""

_HEAD_LINES = 2
"""Lines of a long text that its section shows."""

_HEAD_ITEMS = 3
_LONGEST_VALUE = 200
"""Characters of a value, such as a chat template among the metadata; `--json` has all of them."""

_Shown = dict[str, Any]
_Rows = list[tuple[str, ...]]


def fetch(api: Api, name: str, verbose: bool = False) -> _Shown:
    """What the server tells of a model."""
    with missing(name):
        return api.post("/api/show", {"model": name, "verbose": verbose})


def show(api: Api, name: str, part: str | None, verbose: bool, as_json: bool) -> None:
    """Prints it: one of `PARTS`, which may be empty, or all of it."""
    shown = fetch(api, name, verbose)
    if as_json:
        say(json.dumps(shown, indent=2, ensure_ascii=False))
    elif part is None:
        say(sections(shown, verbose), end="")
    elif text := part_of(shown, part):
        say(text)


def part_of(shown: _Shown, part: str) -> str:
    """One of `PARTS` as text; empty where the model has none."""
    found = shown.get(part) or ""
    text = "\n".join(map(str, found)) if isinstance(found, list) else str(found)
    return text.rstrip("\n")


def sections(shown: _Shown, verbose: bool = False) -> str:
    """All that is known, as Ollama's command lays it out."""
    parts: list[tuple[str, _Rows]] = [
        ("Model", _model(shown)),
        ("Projector", _projector(_object(shown, "projector_info"))),
        ("Capabilities", [(str(each),) for each in _list(shown, "capabilities")]),
        ("Parameters", list(_parameters(part_of(shown, "parameters")))),
        ("Metadata", _metadata(_object(shown, "model_info")) if verbose else []),
        ("Tensors", _tensors(_list(shown, "tensors")) if verbose else []),
        ("System", _head(part_of(shown, "system"))),
        ("License", _head(part_of(shown, "license"))),
    ]
    text = [
        "\n".join([f"  {title}", *wording.aligned(rows, margin=4)]) + "\n\n"
        for title, rows in parts
        if rows
    ]
    return "".join(text)


def _model(shown: _Shown) -> _Rows:
    info, details = _object(shown, "model_info"), _object(shown, "details")
    family = str(info.get("general.architecture") or details.get("family") or "")
    rows = (
        ("architecture", family),
        ("parameters", _count(info) or details.get("parameter_size")),
        ("context length", info.get(f"{family}.context_length")),
        ("embedding length", info.get(f"{family}.embedding_length")),
        ("quantization", details.get("quantization_level")),
        ("requires", shown.get("requires")),
    )
    return _told(rows)


def _projector(info: _Shown) -> _Rows:
    family = str(info.get("general.architecture") or "")
    rows = (
        ("architecture", family),
        ("parameters", _count(info)),
        ("embedding length", info.get(f"{family}.vision.embedding_length")),
        ("dimensions", info.get(f"{family}.vision.projection_dim")),
    )
    return _told(rows)


def _told(rows: tuple[tuple[str, object], ...]) -> _Rows:
    return [(name, _line(value)) for name, value in rows if value not in (None, "", [], {})]


def _parameters(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, _, value = line.strip().partition(" ")
        if name:
            yield name, value.strip()


def _metadata(info: _Shown) -> _Rows:
    return [(name, _line(info[name])) for name in sorted(info)]


def _tensors(tensors: list[Any]) -> _Rows:
    return [
        (str(each.get("name", "")), str(each.get("type", "")), _line(each.get("shape")))
        for each in tensors
        if isinstance(each, dict)
    ]


def _line(value: object) -> str:
    """A value of any kind on one line, with the head of what is long."""
    if isinstance(value, list) and len(value) > _HEAD_ITEMS + 1:
        head = ", ".join(_line(each) for each in value[:_HEAD_ITEMS])
        return f"[{head}, ...+{len(value) - _HEAD_ITEMS} more]"
    if isinstance(value, list):
        return f"[{', '.join(map(_line, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    line = " ".join(str(value).split())
    return line if len(line) <= _LONGEST_VALUE else f"{line[:_LONGEST_VALUE]}..."


def _head(text: str) -> _Rows:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    more: _Rows = [("...",)] if len(lines) > _HEAD_LINES else []
    return [*((line,) for line in lines[:_HEAD_LINES]), *more]


def _object(shown: _Shown, name: str) -> _Shown:
    found = shown.get(name)
    return found if isinstance(found, dict) else {}


def _list(shown: _Shown, name: str) -> list[Any]:
    found = shown.get(name)
    return found if isinstance(found, list) else []


def _count(info: _Shown) -> str:
    """How many parameters there are, where that is known."""
    count = info.get("general.parameter_count")
    return wording.number(count) if isinstance(count, int) and count > 0 else ""
