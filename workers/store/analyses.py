"""What a model's templates make of it: how its answers are written, and what it can do by that.

A template is tried in a process of its own, which takes some tenths of a second: once for each in
the life of the store, when somebody first asks for a model that has it. Workers are told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..conversation.analysis import found_out, key_of
from ..conversation.choice import candidates, fills_gaps
from ..conversation.formats.description import Format
from .files import UNCHANGING, Damaged, Remembered
from .gguf_metadata import CHAT_TEMPLATE, InvalidGGUF, read_header
from .layout import Library, StoredModel

_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Analysed:
    """What is known of one model."""

    capabilities: tuple[str, ...]
    """In Ollama's words: those that follow from the template."""
    by_source: Mapping[str, dict[str, Any]]
    """What was found out, under the key of each template's source."""


NOTHING = Analysed((), {})


class Analyses:
    """Knows the templates of a library's models. Blocking, for any thread."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._known: Remembered[Analysed] = Remembered(_REMEMBERED)

    def of(self, model: StoredModel) -> Analysed:
        """What is known of a model, found out now if need be. What cannot be read tells nothing:
        loading it will say what is wrong.
        """
        known = self._known.get(model.digest, UNCHANGING)
        if known is None:
            try:
                known = self._analysed(model)
            except (Damaged, InvalidGGUF):
                return NOTHING
            self._known.keep(model.digest, UNCHANGING, known)
        return known

    def _analysed(self, model: StoredModel) -> Analysed:
        if model.weights is None:
            return NOTHING
        written = read_header(model.weights).metadata.get(CHAT_TEMPLATE)
        of_file = written if isinstance(written, str) else None
        layers = [layer for layer in model.layers if layer.kind == "template"]
        of_layer = self._library.text(layers[-1]) if layers else None
        found: dict[str, dict[str, Any]] = {}
        for source in candidates(of_file, of_layer, model.config.renderer):
            result = found[key_of(source)] = found_out(source)
            if "broken" not in result:
                insert = ("insert",) if fills_gaps(source) else ()
                return Analysed((*Format.from_json(result["format"]).capabilities, *insert), found)
        return Analysed((), found)
