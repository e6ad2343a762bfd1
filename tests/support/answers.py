"""Formats of the small templates, and answers read in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from pronk.workers.conversation.formats import AnswerParser, Call, Format, Said, derive
from pronk.workers.conversation.formats.check import renderings_of
from pronk.workers.conversation.formats.probing import Rendering
from pronk.workers.conversation.formats.said import joined
from support.chat_templates import FAMILIES

BY_NAME = {family.name: family for family in FAMILIES}


def renderings(name: str) -> tuple[Rendering, ...]:
    family = BY_NAME[name]
    return renderings_of(family.source, bos="<s>", eos="</s>")


@cache
def form_of(name: str) -> Format:
    return Format(harmony=True) if name == "harmony" else derive(*renderings(name))


def read(
    form: Format | str,
    pieces: str | Iterable[str],
    *,
    opened: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> list[Said]:
    """What is said in an answer, neighbours joined."""
    form = form_of(form) if isinstance(form, str) else form
    parser = AnswerParser(form, opened=opened, tools=tools)
    said: list[Said] = []
    for piece in [pieces] if isinstance(pieces, str) else pieces:
        said += parser.push(piece)
    return joined(said + parser.finish())


def calls(said: Iterable[Said]) -> list[tuple[str, dict[str, Any]]]:
    return [(part.name, part.arguments) for part in said if isinstance(part, Call)]
