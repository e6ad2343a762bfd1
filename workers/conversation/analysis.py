"""Tries a Jinja template before it is used, in a process with little memory and time.

What a template takes, and what else can be found out by rendering it, is found out once: the
process that asked keeps it for as long as it lives. A template that loops, recurses or builds
gigabytes ends its process and nothing else. Go templates need none of this.

Run as a program, it reads an order and writes JSON: `{"traits": {…}}` and what `FURTHER` adds, or
`{"broken": reason}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from . import confined
from .jinja import Broken
from .probing import find_traits
from .template import ChatTemplate
from .traits import Traits

FURTHER: dict[str, Callable[[ChatTemplate], Any]] = {}
"""What else the program finds out: by a name the function that makes JSON of a template."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """What is known of a template."""

    traits: Traits
    further: Mapping[str, Any]
    """What the functions in `FURTHER` returned, by name."""


@lru_cache(maxsize=64)
def analysed(source: str, bos: str, eos: str) -> Analysis:
    """What the program says of a template; it takes some tenths of a second the first time.

    `bos` and `eos` are the texts of the model's beginning and end tokens. Raises `Broken`,
    or `TooMuch` where it takes too much memory or time.
    """
    order = {"source": source, "bos": bos, "eos": eos}
    answer = confined.run(__name__, order, given=len(source))
    if "broken" in answer:
        raise Broken(answer["broken"])
    return Analysis(Traits(**answer.pop("traits")), answer)


def analyse(source: str, bos: str, eos: str) -> dict[str, Any]:
    """What the program answers, found out in this process, whatever that takes.

    Raises `Broken`.
    """
    template = ChatTemplate(source, bos=bos, eos=eos)
    template.traits = find_traits(source, template.text)
    found = {name: find(template) for name, find in FURTHER.items()}
    return {"traits": asdict(template.traits), **found}


def _work(order: dict[str, Any]) -> dict[str, Any]:
    try:
        return analyse(order["source"], order["bos"], order["eos"])
    except Broken as broken:
        return {"broken": str(broken)}


if __name__ == "__main__":
    confined.main(_work)
