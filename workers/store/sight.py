"""Whether a model sees: it does by a projector that has a part for images."""

from __future__ import annotations

from pathlib import Path

from .files import Damaged
from .gguf_metadata import InvalidGGUF
from .layout import Library, StoredModel
from .looking.finding import Lacking, Look
from .looking.headers import Headers

_MOST = 32
"""Projectors of a model that are looked at: none has more than a few."""


def sees(model: StoredModel, library: Library, headers: Headers) -> bool:
    """Whether one of the model's projectors is for images.

    One that cannot be read is for nothing; loading the model will say what is wrong with it.
    Raises `Lacking`.
    """
    lacking: list[Look] = []
    for path in _projectors(model, library):
        try:
            if headers.facts(path).sees:
                return True
        except InvalidGGUF:
            continue
        except Lacking as each:
            lacking += each.looks
    if lacking:
        raise Lacking(*lacking)
    return False


def _projectors(model: StoredModel, library: Library) -> list[Path]:
    paths: list[Path] = []
    for layer in [layer for layer in model.layers if layer.kind == "projector"][:_MOST]:
        try:
            paths.append(library.part(layer))
        except Damaged:
            continue
    return paths
