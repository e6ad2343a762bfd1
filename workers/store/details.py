"""What lists and descriptions show of a model: its config's word first, then its file's."""

from __future__ import annotations

from collections.abc import Collection

from ...protocol.errors import PronkError
from ...protocol.messages.library import ModelDetails
from ...protocol.names import parse_name
from .gguf_facts import UNKNOWN, HeaderFacts
from .layout import Config, StoredModel

_CAPABILITIES = ("tools", "insert", "vision", "thinking")
"""In Ollama's order, behind `completion`."""


def capabilities_of(
    facts: HeaderFacts | None,
    template_capabilities: Collection[str] = (),
    *,
    sees: bool = False,
) -> list[str]:
    """In Ollama's words. `template_capabilities` are those that only an analysis of the model's
    template can tell, `sees` says that it has a projector for images.
    """
    if facts and facts.embeds:
        return ["embedding"]
    found = set(template_capabilities)
    if facts and facts.infills:
        found.add("insert")
    if sees:
        found.add("vision")
    return ["completion", *(each for each in _CAPABILITIES if each in found)]


def says_all(config: Config) -> bool:
    """Whether a config names all that a list shows, so that no header has to be read."""
    return all(
        value not in ("", UNKNOWN)
        for value in (config.family, config.parameter_size, config.quantization)
    )


def details_of(model: StoredModel, facts: HeaderFacts | None) -> ModelDetails:
    """What the config says, else what the file says, else "unknown"."""
    config = model.config

    def first(said: str, read: str | None) -> str:
        return said if said not in ("", UNKNOWN) else read or UNKNOWN

    family = first(config.family, facts and facts.architecture)
    return ModelDetails(
        parent_model=_parent(model),
        format=config.format or ("gguf" if model.weights else UNKNOWN),
        family=family,
        families=list(config.families) or [family],
        parameter_size=first(config.parameter_size, facts and facts.parameter_size),
        quantization_level=first(config.quantization, facts and facts.quantization),
    )


def _parent(model: StoredModel) -> str:
    """The model whose weights these are, too. Ollama has a path of its host there where it made
    them of a file, which is nobody's business.
    """
    origins = [layer.origin for layer in model.layers if layer.kind == "model"]
    if not origins or not origins[-1]:
        return ""
    try:
        return parse_name(origins[-1]).display
    except PronkError:
        return ""
