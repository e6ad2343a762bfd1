"""Everything there is to show of one model: `POST /api/show`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...protocol.logs import RateLimitedLog
from ...protocol.messages.changes import ModelMessage
from ...protocol.messages.library import ModelShown, ShowModel
from .details import details_of
from .fitting import OMITTED, fitted
from .gguf_facts import HeaderFacts
from .gguf_metadata import CHAT_TEMPLATE, InvalidGGUF
from .layout import Library, StoredModel
from .looking.headers import Headers, Shown
from .modelfile import TEXT_KINDS, Recipe, recipe_of

_MAX_LICENSES = 32
"""That are read."""


def show(
    question: ShowModel,
    model: StoredModel,
    library: Library,
    headers: Headers,
    capabilities: list[str],
    noted: RateLimitedLog,
) -> ModelShown:
    """The answer, cut where it would not fit in one message. Files that are no GGUF are left out,
    with a line in the log.

    Raises `Damaged` where a part of the model cannot be read, `PronkError` (too_large), and
    `Lacking`.
    """
    name = model.name.display
    recipe = recipe_of(name, _texts(model, library), model)
    facts, header = _header(headers, model.weights, question.verbose, noted, name)
    info = _info(header)
    chat_template = info.get(CHAT_TEMPLATE)
    shown = ModelShown(
        call=question.call,
        modelfile=recipe.modelfile(),
        parameters=recipe.parameter_columns(),
        template=recipe.template or (chat_template if isinstance(chat_template, str) else ""),
        system=recipe.system,
        license="\n".join(recipe.licenses),
        details=details_of(model, facts),
        model_info=info,
        capabilities=capabilities,
        modified_at=model.modified_at,
        tensors=header.tensors,
        projector_info=_projector_info(model, library, headers, question.verbose, noted),
        messages=_messages(recipe),
        requires=model.config.requires,
        renderer=model.config.renderer,
        parser=model.config.parser,
    )
    return fitted(shown, name)


def _projector_info(
    model: StoredModel, library: Library, headers: Headers, verbose: bool, noted: RateLimitedLog
) -> dict[str, Any]:
    """The metadata of the first file that turns pictures into what the weights understand."""
    layer = next((layer for layer in model.layers if layer.kind == "projector"), None)
    if layer is None:
        return {}
    _, shown = _header(headers, library.part(layer), verbose, noted, model.name.display)
    return _info(shown)


def _header(
    headers: Headers, path: Path | None, verbose: bool, noted: RateLimitedLog, name: str
) -> tuple[HeaderFacts | None, Shown]:
    if path is None:
        return None, Shown()
    try:
        return headers.facts(path), headers.shown(path, verbose=verbose)
    except InvalidGGUF as error:
        noted.warning("invalid GGUF", f"{name}: {error}")
        return None, Shown()


def _info(shown: Shown) -> dict[str, Any]:
    return shown.metadata | ({OMITTED: shown.omitted} if shown.omitted else {})


def _messages(recipe: Recipe) -> list[ModelMessage]:
    return [ModelMessage(role, content) for role, content in recipe.messages]


def _texts(model: StoredModel, library: Library) -> dict[str, list[str]]:
    """The text layers that count, by kind. Raises `Damaged`."""
    texts: dict[str, list[str]] = {}
    for kind in TEXT_KINDS:
        layers = [layer for layer in model.layers if layer.kind == kind]
        counting = layers[:_MAX_LICENSES] if kind == "license" else layers[-1:]
        if counting:
            texts[kind] = [library.text(layer) for layer in counting]
    return texts
