"""Which template writes a prompt, and in which language it is written.

A model has up to two: the Jinja template inside its GGUF file, and a TEMPLATE layer beside it,
which Ollama writes in Go. The layer is the later and more deliberate choice, so it goes first; but
where Ollama writes the prompt in code of its own (`renderer`), the layer is only a placeholder.
"""

from __future__ import annotations

import logging
import re

from ...protocol.errors import Code, PronkError
from . import confined, jinja
from .analysis import analysed
from .gotemplate import GoTemplateError
from .gotemplate import Template as GoTemplate
from .template import (
    ChatTemplate,
    GoChatTemplate,
    GoRequestTemplate,
    RequestTemplate,
    Template,
)
from .traits import Traits

_log = logging.getLogger(__name__)

_JINJA_ONLY = ("{%", "{#")
_GO_VALUE = re.compile(r"\{\{(?:[^{}'\"`]*[\s(|])?(?:\.[A-Z]|\$[\s\w.])")
"""How a Go template that cannot be read still looks like one: it reaches for `.Name` or `$name`."""


def choose_template(
    jinja_source: str | None, layer_source: str | None, renderer: str, *, bos: str, eos: str
) -> Template | None:
    """The template of a model, or None where it has none.

    `jinja_source` is the GGUF file's, `layer_source` the TEMPLATE layer's; `renderer` is Ollama's
    name for code that takes the layer's place, or empty. `bos` and `eos` are the texts of the
    model's beginning and end tokens. Raises `PronkError` (LOAD_FAILED) where the layer cannot be
    read and there is nothing to fall back to, or the Jinja template cannot be used.
    """
    if layer_source and layer_source.strip() and not (renderer and jinja_source):
        try:
            return _of_layer(layer_source, bos, eos)
        except (GoTemplateError, jinja.Broken) as error:
            if not jinja_source:
                raise PronkError(
                    Code.LOAD_FAILED, f"the model's TEMPLATE cannot be read: {error}"
                ) from None
            _log.warning(
                "the model's TEMPLATE cannot be read: %s; the one in its GGUF file is used", error
            )
    if not jinja_source:
        return None
    try:
        return _jinja(jinja_source, bos, eos)
    except jinja.Broken as error:
        raise PronkError(
            Code.LOAD_FAILED, f"the model's chat template cannot be used: {error}"
        ) from None


def _jinja(source: str, bos: str, eos: str) -> ChatTemplate:
    """The template once it was tried. Raises `jinja.Broken`."""
    try:
        return ChatTemplate(source, bos=bos, eos=eos, traits=analysed(source, bos, eos).traits)
    except confined.TooMuch as error:
        raise jinja.Broken(str(error)) from None


def _of_layer(source: str, bos: str, eos: str) -> Template:
    template = go_template(source)
    if template:
        return GoChatTemplate(template, source)
    return _jinja(source, bos, eos)


def request_template(source: str, *, bos: str, eos: str) -> GoRequestTemplate | RequestTemplate:
    """The template that came with a request. Raises `PronkError` (INVALID_REQUEST)."""
    try:
        template = go_template(source)
    except GoTemplateError as error:
        raise PronkError(Code.INVALID_REQUEST, f"template: {error}") from None
    if template:
        return GoRequestTemplate(template)
    return RequestTemplate(
        source, bos=bos, eos=eos, find_traits=lambda: _traits_of_request(source, bos, eos)
    )


def _traits_of_request(source: str, bos: str, eos: str) -> Traits | None:
    """What a request's template takes; None where that cannot be said."""
    try:
        return analysed(source, bos, eos).traits
    except (jinja.Broken, confined.TooMuch):
        return None


def fills_gaps(source: str) -> bool:
    """Whether a model's template has a place for what stands behind a gap: those in Go may."""
    try:
        template = go_template(source)
    except GoTemplateError:
        return False
    return template is not None and "suffix" in {name.lower() for name in template.names}


def validate(source: str) -> None:
    """Raises `PronkError` (INVALID_REQUEST) with a reason where a template cannot be read."""
    try:
        if not go_template(source):
            jinja.check(source)
    except (GoTemplateError, jinja.Broken) as error:
        raise PronkError(Code.INVALID_REQUEST, f"template: {error}") from None


def go_template(source: str) -> GoTemplate | None:
    """The template of a source in Go's language, or None where the source is in Jinja.

    What can be read as Go is Go, unless it has signs of Jinja and reaches for nothing in Go's way:
    no Jinja expression can be read as Go and begins with a dot or a dollar. What cannot be read as
    Go is Jinja, unless it looks like Go with a mistake: then `GoTemplateError` is raised.
    """
    marked = any(sign in source for sign in _JINJA_ONLY)
    try:
        template = GoTemplate.parse(source)
    except GoTemplateError:
        if marked or not _GO_VALUE.search(source):
            return None
        raise
    return template if template.names or not marked else None
