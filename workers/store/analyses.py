"""What a model's templates make of it: how its answers are written, and what it can do by that.

A template is tried in a process of its own, which takes some tenths of a second: once for each in
the life of the store, when somebody first asks for a model that has it. Workers are told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..conversation.analysis import key_of
from ..conversation.choice import candidates
from ..conversation.formats.description import Format
from .files import UNCHANGING, Damaged, Remembered
from .gguf_metadata import CHAT_TEMPLATE, InvalidGGUF
from .layout import Library, StoredModel
from .looking.headers import Headers
from .looking.templates import Templates

_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Analysed:
    """What is known of one model."""

    capabilities: tuple[str, ...]
    """In Ollama's words: those that follow from the template."""
    by_source: Mapping[str, dict[str, Any]]
    """What was found out, under the key of each template's source."""


@dataclass(frozen=True, slots=True)
class _Tried:
    """What is remembered of it: the rest is known by the keys."""

    capabilities: tuple[str, ...]
    keys: tuple[str, ...]


NOTHING = Analysed((), {})


class Analyses:
    """Knows the templates of a library's models. Blocking, for any thread."""

    def __init__(self, library: Library, headers: Headers, templates: Templates) -> None:
        self._library = library
        self._headers = headers
        self._templates = templates
        self._tried: Remembered[_Tried] = Remembered(_REMEMBERED)

    def of(self, model: StoredModel) -> Analysed:
        """What is known of a model. What cannot be read tells nothing: loading it will say what is
        wrong. Raises `Lacking`.
        """
        if tried := self._tried.get(model.digest, UNCHANGING):
            found = {key: self._templates.by_key(key) for key in tried.keys}
            known = {key: each for key, each in found.items() if each is not None}
            if len(known) == len(found):
                return Analysed(tried.capabilities, known)
        try:
            analysed = self._analysed(model)
        except (Damaged, InvalidGGUF):
            return NOTHING
        keys = tuple(analysed.by_source)
        self._tried.keep(model.digest, UNCHANGING, _Tried(analysed.capabilities, keys))
        return analysed

    def _analysed(self, model: StoredModel) -> Analysed:
        if model.weights is None:
            return NOTHING
        written = self._headers.shown(model.weights).metadata.get(CHAT_TEMPLATE)
        of_file = written if isinstance(written, str) else None
        layers = [layer for layer in model.layers if layer.kind == "template"]
        of_layer = self._library.text(layers[-1]) if layers else None
        found: dict[str, dict[str, Any]] = {}
        for source in candidates(of_file, of_layer, model.config.renderer):
            result = found[key_of(source)] = self._templates.known(source)
            if "broken" not in result:
                insert = ("insert",) if result.get("insert") is True else ()
                return Analysed((*Format.from_json(result["format"]).capabilities, *insert), found)
        return Analysed((), found)
