"""Formats of the small templates, and answers read in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from pronk.workers.conversation.analysis import ways_of
from pronk.workers.conversation.formats.derive import derive
from pronk.workers.conversation.formats.description import Format
from pronk.workers.conversation.formats.parser import AnswerParser
from pronk.workers.conversation.formats.said import Call, Said, joined
from pronk.workers.conversation.rendering import Rendering
from support.chat_templates import WAYS

BY_NAME = {family.name: family for family in WAYS}


@cache
def renderings(name: str) -> tuple[Rendering, ...]:
    return renderings_of(BY_NAME[name].source)


def renderings_of(source: str) -> tuple[Rendering, ...]:
    return ways_of(source, bos="<s>", eos="</s>")[1]


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
