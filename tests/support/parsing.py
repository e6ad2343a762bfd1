"""A way of writing answers for tests: thinking in <t>…</t>, calls in <c>name:{…}</c>."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pronk.workers.conversation.formats.said import Call, Content, Said, Thinking
from pronk.workers.inference.reading import Reading

MARKERS = ("<t>", "</t>", "<c>", "</c>")


class MarkedParser:
    """Reads such answers in pieces of any size, and shows nothing that may become a marker."""

    def __init__(self, *, opened: bool = False) -> None:
        self._inside = "<t>" if opened else ""
        self._text = ""

    def push(self, text: str) -> list[Said]:
        self._text += text
        said: list[Said] = []
        while True:
            ends = {"": ("<t>", "<c>"), "<t>": ("</t>",), "<c>": ("</c>",)}[self._inside]
            found = [(self._text.find(end), end) for end in ends if end in self._text]
            if not found:
                break
            place, marker = min(found)
            said += self._say(self._text[:place])
            self._text = self._text[place + len(marker) :]
            self._inside = "" if self._inside else marker
        if self._inside != "<c>":
            held = max(
                n for n in range(4) for end in ends if n < len(end) and self._ends_with(end[:n])
            )
            shown = self._text[: len(self._text) - held]
            self._text = self._text[len(shown) :]
            said += self._say(shown)
        return said

    def finish(self) -> list[Said]:
        said = self._say(self._text)
        self._text = ""
        return said

    def _ends_with(self, beginning: str) -> bool:
        return self._text.endswith(beginning)

    def _say(self, text: str) -> list[Said]:
        if self._inside == "<c>":
            name, _, arguments = text.partition(":")
            try:
                return [Call(name, json.loads(arguments))]
            except ValueError:
                return [Content(f"<c>{text}")]
        if not text:
            return []
        return [Thinking(text) if self._inside else Content(text)]


READING = Reading(lambda body, end: MarkedParser(opened=end.endswith("<t>")), MARKERS)


def plain(said: Sequence[Said]) -> list[tuple[str, Any]]:
    """What is said, independent of cuts: texts joined, and calls without their ids."""
    units: list[tuple[str, Any]] = []
    for each in said:
        if isinstance(each, Call):
            units.append(("call", (each.name, each.arguments)))
            continue
        kind = "thinking" if isinstance(each, Thinking) else "text"
        if units and units[-1][0] == kind:
            units[-1] = (kind, units[-1][1] + each.text)
        else:
            units.append((kind, each.text))
    return units
