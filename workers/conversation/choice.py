"""Which template a model's conversations are written with."""

from __future__ import annotations

import logging

from .jinja import Broken, Renderer
from .template import ChatTemplate

_log = logging.getLogger(__name__)


def choose_template(
    jinja_source: str | None, layer_source: str | None, renderer: str, *, bos: str, eos: str
) -> ChatTemplate | None:
    """The Modelfile's TEMPLATE where it is one in Jinja, else that of the model's file, if any.

    `renderer` is Ollama's name for code that writes prompts of this model: the file's own template
    says the same. `bos` and `eos` are the texts of the model's beginning and end tokens.
    """
    if layer_source and _is_jinja(layer_source):
        return ChatTemplate(layer_source, bos=bos, eos=eos)
    if layer_source and not jinja_source:
        _log.warning("the TEMPLATE of the model's Modelfile is not in Jinja, and it has no other")
    return ChatTemplate(jinja_source, bos=bos, eos=eos) if jinja_source else None


def _is_jinja(source: str) -> bool:
    """Whether it can be read as Jinja. A template in Go's language cannot where it writes a
    value.
    """
    try:
        Renderer(source).compile()
    except Broken:
        return False
    return True
