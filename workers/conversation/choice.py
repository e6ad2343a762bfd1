"""Which template writes a prompt, and in which language it is written.

A model has up to two: the Jinja template inside its GGUF file, and a TEMPLATE layer beside it,
which Ollama writes in Go. The layer is the later and more deliberate choice, so it goes first; but
where Ollama writes the prompt in code of its own (`renderer`), the layer is only a placeholder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from ...protocol.errors import Code, PronkError
from . import jinja
from .analysis import NOTHING_KNOWN, analysed
from .gotemplate import GoTemplateError
from .gotemplate.parser import MAX_SOURCE
from .language import go_template
from .renders import Render, here
from .template import (
    ChatTemplate,
    GoChatTemplate,
    GoRequestTemplate,
    RequestTemplate,
    Template,
)
from .traits import Traits

_log = logging.getLogger(__name__)


def candidates(
    jinja_source: str | None, layer_source: str | None, renderer: str
) -> tuple[str, ...]:
    """The templates of a model in the order in which they are tried."""
    layer = layer_source if layer_source and layer_source.strip() else None
    if renderer and jinja_source:
        layer = None
    return tuple(source for source in (layer, jinja_source) if source)


def choose_template(
    jinja_source: str | None,
    layer_source: str | None,
    renderer: str,
    *,
    bos: str,
    eos: str,
    known: Mapping[str, Any] = NOTHING_KNOWN,
    render: Callable[[str], Render] = here,
) -> Template | None:
    """The template of a model, or None where it has none.

    `jinja_source` is the GGUF file's, `layer_source` the TEMPLATE layer's; `renderer` is Ollama's
    name for code that takes the layer's place, or empty. `bos` and `eos` are the texts of the
    model's beginning and end tokens; `known` is what was found out about templates before; `render`
    says where a source in Jinja is rendered. Raises `PronkError` (LOAD_FAILED) where none of them
    can be used.
    """
    sources = candidates(jinja_source, layer_source, renderer)
    for last, source in enumerate(sources, 1 - len(sources)):
        try:
            return _template(source, bos, eos, known, render)
        except (GoTemplateError, jinja.Broken) as error:
            if not last:
                what = "chat template" if source == jinja_source else "TEMPLATE"
                raise PronkError(
                    Code.LOAD_FAILED, f"the model's {what} cannot be used: {error}"
                ) from None
            _log.warning(
                "the model's TEMPLATE cannot be used: %s; the one in its GGUF file is used", error
            )
    return None


def _template(
    source: str, bos: str, eos: str, known: Mapping[str, Any], render: Callable[[str], Render]
) -> Template:
    """The template once it was tried. Raises `GoTemplateError` or `jinja.Broken`."""
    template = go_template(source)
    analysis = analysed(source, known)
    if template:
        return GoChatTemplate(template, source, form=analysis.form)
    traits, form, write = analysis.traits, analysis.form, render(source)
    return ChatTemplate(source, bos=bos, eos=eos, traits=traits, form=form, write=write)


def request_template(source: str, *, bos: str, eos: str) -> GoRequestTemplate | RequestTemplate:
    """The template that came with a request. Raises `PronkError` (INVALID_REQUEST)."""
    if len(source) > MAX_SOURCE:
        raise PronkError(
            Code.INVALID_REQUEST, f"template: it has more than {MAX_SOURCE} characters"
        )
    try:
        template = go_template(source)
    except GoTemplateError as error:
        raise PronkError(Code.INVALID_REQUEST, f"template: {error}") from None
    if template:
        return GoRequestTemplate(template)
    return RequestTemplate(source, bos=bos, eos=eos, find_traits=lambda: _traits_of_request(source))


def _traits_of_request(source: str) -> Traits | None:
    """What a request's template takes; None where that cannot be said."""
    try:
        return analysed(source).traits
    except jinja.Broken:
        return None
