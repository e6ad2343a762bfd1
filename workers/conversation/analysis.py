"""Tries a template before it is used, in a process with little memory and time.

What a template takes, and how a model writes its answers that was trained with it, is found out
once, by rendering it: the store does that, and tells the workers. A template that loops, recurses
or builds gigabytes ends its process and nothing else.

Run as a program, it reads an order and writes JSON: `{"traits": {…}, "format": {…}, "insert": …}`,
whose last value says whether the template has a place for what stands behind a gap, as those in Go
may, or `{"broken": reason}`.
"""

from __future__ import annotations

import hashlib
import threading
import traceback
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from . import confined
from .confinement import main
from .formats.derive import derive
from .formats.description import Format
from .gotemplate import GoTemplateError
from .jinja import Broken
from .language import go_template
from .probing import find_traits
from .rendering import GoRendering, JinjaRendering, Rendering
from .template import ChatTemplate, GoChatTemplate
from .traits import TAKES_ALL, Traits

BOS, EOS = "<s>", "</s>"
"""What stands for the texts of a model's beginning and end tokens: nothing found out here depends
on them."""

NOTHING_KNOWN: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Analysis:
    """What is known of a template."""

    traits: Traits
    form: Format
    """How answers are written."""


def key_of(source: str) -> str:
    """By which what was found out about a template is known: its SHA-256."""
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


def analysed(source: str, known: Mapping[str, Any] = NOTHING_KNOWN) -> Analysis:
    """What is known of a template: as `known` has it under the template's key, else found out now.

    Raises `Broken` where the template cannot be used.
    """
    found = known.get(key_of(source)) or found_out(source)
    if "broken" in found:
        raise Broken(found["broken"])
    return Analysis(Traits(**found["traits"]), Format.from_json(found["format"]))


_MOST_KEPT = 1024
_found: OrderedDict[str, dict[str, Any]] = OrderedDict()
_found_lock = threading.Lock()


def found_out(source: str) -> dict[str, Any]:
    """What the program says of a template, as plain data. It takes some tenths of a second, once in
    the life of this process; a hostile template ten.

    It is kept without the source, which may be anybody's and long.
    """
    key = key_of(source)
    with _found_lock:
        if key in _found:
            _found.move_to_end(key)
            return _found[key]
    try:
        found = confined.run(__name__, {"source": source}, given=len(source))
    except confined.TooMuch as error:
        found = {"broken": str(error)}
    with _found_lock:
        _found[key] = found
        if len(_found) > _MOST_KEPT:
            _found.popitem(last=False)
    return found


def analyse(source: str) -> dict[str, Any]:
    """What the program answers, found out in this process, whatever that takes.

    Raises `Broken` or `GoTemplateError`.
    """
    traits, ways = ways_of(source, bos=BOS, eos=EOS)
    found = {"traits": asdict(traits), "format": _format(*ways)}
    return {**found, "insert": ways[0].fills}


def ways_of(source: str, *, bos: str, eos: str) -> tuple[Traits, tuple[Rendering, ...]]:
    """What a template takes, and the ways in which it may be rendered, the usual one first.

    Raises `Broken` or `GoTemplateError`.
    """
    if template := go_template(source):
        return TAKES_ALL, (GoRendering(GoChatTemplate(template, source)),)
    write = ChatTemplate(source, bos=bos, eos=eos).text
    traits = find_traits(source, write)
    return traits, JinjaRendering(write, traits).ways()


def _format(*ways: Rendering) -> dict[str, Any]:
    try:
        return derive(*ways).to_json()
    except Exception:
        # A model whose answers nobody can read is still one that answers with text.
        traceback.print_exc()
        return Format().to_json()


def _work(order: dict[str, Any]) -> dict[str, Any]:
    try:
        return analyse(order["source"])
    except (Broken, GoTemplateError) as broken:
        return {"broken": str(broken)}


if __name__ == "__main__":
    main(_work)
