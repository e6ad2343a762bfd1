"""The files of a model beside its weights that change how it answers."""

from __future__ import annotations

from ...protocol.messages.library import ModelPart, PartKind
from .files import Damaged
from .layout import Library, StoredModel

_MAX_PARTS = 256
_KINDS = frozenset(PartKind)
_ALL_COUNT = frozenset({PartKind.ADAPTER, PartKind.PROJECTOR})
"""Kinds of which a model may have several."""


def parts_of(library: Library, model: StoredModel) -> list[ModelPart]:
    """The parts in the manifest's order; of texts of one kind only the last one, which counts.

    Raises `Damaged` when a file cannot be used, or there are too many.
    """
    layers = [layer for layer in model.layers if layer.kind in _KINDS]
    last = {layer.kind: place for place, layer in enumerate(layers)}
    counting = [
        layer
        for place, layer in enumerate(layers)
        if layer.kind in _ALL_COUNT or last[layer.kind] == place
    ]
    if len(counting) > _MAX_PARTS:
        raise Damaged(f"it has more than {_MAX_PARTS} adapters and projectors")
    return [
        ModelPart(PartKind(layer.kind), str(library.part(layer)), layer.digest, layer.size)
        for layer in counting
    ]
