"""Conversations that differ in one thing, and what a template makes of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..go_chat import Think
from ..rendering import Rendering, attempt
from ..turns import Turn

_RENDERINGS = 64
"""How often a template is rendered at most to find out its format."""

USER, LATER, CONTENT, THOUGHT, RESULT = "qzuser", "qzlater", "qzcontent", "qzthought", "qzresult"
"""Texts that no template has."""

ANSWERED = re.compile(
    r"<\|(?:open|close)\|>[^<>\n]{1,80}<\|\w{1,20}\|>|<[^<>\n]{1,80}>|\[/?[A-Z][A-Z_]{2,}\]"
)
"""A piece of text that is a marker by its looks, so that no cut goes through it. Tokens that say
that they open and close something make one with the name between them and the next token."""


@dataclass(frozen=True, slots=True)
class ProbeCall:
    """A call to be found again in what a template writes."""

    name: str
    arguments: Mapping[str, Any]
    id: str
    """Nine letters and digits, which is what some templates insist on."""

    def given(self) -> dict[str, Any]:
        """As it stands in a turn."""
        function = {"name": self.name, "arguments": dict(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}

    def tool(self) -> dict[str, Any]:
        """The tool that is called."""
        types = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}
        properties = {
            key: {"type": types.get(type(value), "object"), "description": f"The {key}."}
            for key, value in self.arguments.items()
        }
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        function = {"name": self.name, "description": "A tool.", "parameters": parameters}
        return {"type": "function", "function": function}


FIRST = ProbeCall("qzalpha", {"pfirst": "vqone", "psecond": "uqtwo"}, "Zq1Zq2Zq3")
SECOND = ProbeCall("wxomega", {"rthird": "sqthree", "tfourth": "rqfour"}, "Wx4Wx5Wx6")
TYPED = ProbeCall(
    "kvtyped",
    {"gnumber": 7351, "hflag": True, "jlist": [86, "qx"], "ktext": "mqlast"},
    "Kv7Kv8Kv9",
)
PROBES = (FIRST, SECOND, TYPED)


@dataclass(frozen=True, slots=True)
class Answer:
    """An assistant's message as a template writes it."""

    prompt: str
    """Everything before it."""
    text: str
    """The message, and all that follows it."""


class Probing:
    """Renders one template, a bounded number of times. What fails is None."""

    def __init__(self, rendering: Rendering) -> None:
        self._rendering = rendering
        self._tools = [probe.tool() for probe in PROBES]
        self._left = _RENDERINGS
        self._known: dict[Any, str | None] = {}

    def prompt(
        self, *, tools: bool = True, think: Think = None, first: Sequence[Turn] = ()
    ) -> str | None:
        """The prompt of one question."""
        return self._render([*first, Turn("user", USER)], tools, think, True)

    def answer(
        self,
        content: str = "",
        thinking: str = "",
        calls: Sequence[ProbeCall] = (),
        *,
        tools: bool = True,
        think: Think = None,
    ) -> Answer | None:
        """What follows the prompt of a question when this was answered.

        Some templates show tools only beside the last question: they are asked without.
        """
        for offered in (True, False) if tools else (False,):
            found = self._answer(content, thinking, calls, offered, think)
            if found is not None:
                return found
        return None

    def _answer(
        self,
        content: str,
        thinking: str,
        calls: Sequence[ProbeCall],
        tools: bool,
        think: Think,
    ) -> Answer | None:
        prompt = self.prompt(tools=tools, think=think)
        if prompt is None:
            return None
        said = Turn("assistant", content, thinking, [call.given() for call in calls])
        results = [
            Turn("tool", RESULT, tool_name=call.name, tool_call_id=call.id) for call in calls
        ]
        end = Turn("assistant", LATER)
        for after in ([], results, [*results, end]) if calls else ([], [Turn("user", LATER)]):
            whole = self._render([Turn("user", USER), said, *after], tools, think, False)
            if whole is None:
                continue
            cut = common_start(prompt, whole)
            wanted = (content, *(call.name for call in calls))
            if USER not in whole[cut:] and all(text in whole[cut:] for text in wanted):
                return Answer(whole[:cut], whole[cut:])
        return None

    def _render(
        self, turns: Sequence[Turn], tools: bool, think: Think, generates: bool
    ) -> str | None:
        key = (repr(turns), tools, think, generates)
        if key not in self._known:
            if not self._left:
                return None
            self._left -= 1
            offered = self._tools if tools else []
            self._known[key] = attempt(self._rendering, turns, offered, think, generates)
        return self._known[key]


def up_to_end(text: str, end: str, texts: Sequence[str], calls: Sequence[str]) -> str:
    """A message up to the `end` behind all of its `texts` and the names of its `calls`.

    Parts of a message may end so each, but text behind a call that does is another message.
    """
    parts = [(text.find(each), each) for each in (*texts, *calls) if each]
    behind, called = 0, False
    for at, each in sorted(part for part in parts if part[0] >= 0):
        if called and each in texts and end and end in text[behind:at]:
            break
        behind, called = at + len(each), called or each in calls
    at = text.find(end, behind) if end else -1
    return text if at < 0 else text[:at]


def common_start(one: str, other: str) -> int:
    """How far two texts are the same, back to before a marker that is cut in either."""
    end = 0
    for end, (a, b) in enumerate(zip(one, other, strict=False)):  # noqa: B007
        if a != b:
            break
    else:
        end = min(len(one), len(other))
    return min(_before_marker(one, end), _before_marker(other, end))


def common_end(one: str, other: str) -> int:
    """How many characters at the end are the same, without a part of a marker."""
    reach = min(len(one), len(other))
    size = next((n for n in range(reach) if one[-1 - n] != other[-1 - n]), reach)
    return min(len(text) - _behind_marker(text, len(text) - size) for text in (one, other))


def _before_marker(text: str, position: int) -> int:
    start = max(0, position - 100)
    for found in ANSWERED.finditer(text, start):
        if found.start() < position < found.end():
            return found.start()
        if found.start() >= position:
            break
    return position


def _behind_marker(text: str, position: int) -> int:
    for found in ANSWERED.finditer(text, max(0, position - 100)):
        if found.start() < position < found.end():
            return found.end()
        if found.start() >= position:
            break
    return position
