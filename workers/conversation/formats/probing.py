"""Conversations that differ in one thing, and what a template makes of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ....protocol.errors import PronkError
from ..go_chat import Think
from ..gotemplate import GoTemplateError
from ..jinja import Broken, Complaint, Renderer
from ..turns import Turn

_RENDERINGS = 64
"""How often a template is rendered at most to find out its format."""
_FUEL = 200_000
_OUTPUT = 256 * 1024
_BOTH = (False, True)

USER, LATER, CONTENT, THOUGHT, RESULT = "qzuser", "qzlater", "qzcontent", "qzthought", "qzresult"
"""Texts that no template has."""

ANSWERED = re.compile(r"<[^<>\n]{1,80}>|\[/?[A-Z][A-Z_]{2,}\]")
"""A piece of text that is a marker by its looks, so that no cut goes through it."""


class Rendering(Protocol):
    """A template, given everything that there is to be given."""

    def render(
        self,
        turns: Sequence[Turn],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        think: Think = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt text. Raises `PronkError` where the template refuses, or fails."""
        ...


class _Prompting(Protocol):
    def render(
        self,
        messages: Sequence[Turn],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        think: Think = None,
    ) -> str: ...


class GoRendering:
    """A Go template. It always ends where the model is to speak."""

    def __init__(self, template: _Prompting) -> None:
        self._template = template

    def render(
        self,
        turns: Sequence[Turn],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        think: Think = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt text. Raises `PronkError`."""
        return self._template.render(turns, tools=tools, think=think)


@dataclass(frozen=True, slots=True)
class HuggingFace:
    """A Jinja template, given what `apply_chat_template` gives. For one thread at a time.

    The seam to whatever else renders a model's template: `derive` needs only `render`.
    """

    renderer: Renderer
    bos: str = "<s>"
    eos: str = "</s>"
    textual: bool = False
    """Whether the arguments of a call are given as text, not as an object."""
    none: bool = False
    """Whether a message with calls and without text has no content, not an empty one."""
    listed: bool = False
    """Whether content is a list of parts, of which the text is one."""

    def ways(self) -> tuple[HuggingFace, ...]:
        """The same template with everything that templates disagree about."""
        question = [Turn("user", USER)]
        read = [attempt(self, question, tools, None, True) for tools in ((), [FIRST.tool()])]
        base = self if any(USER in (text or "") for text in read) else replace(self, listed=True)
        return tuple(
            replace(base, textual=textual, none=none) for textual in _BOTH for none in _BOTH
        )

    def render(
        self,
        turns: Sequence[Turn],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        think: Think = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt text. Raises `Complaint` or `Broken`."""
        variables: dict[str, Any] = {
            "bos_token": self.bos,
            "eos_token": self.eos,
            "add_generation_prompt": add_generation_prompt,
            "messages": [self._message(turn) for turn in turns],
            "tools": list(tools) or None,
            "documents": None,
        }
        if think is not None:
            variables |= {"enable_thinking": bool(think), "thinking": bool(think)}
            if isinstance(think, str):
                variables["reasoning_effort"] = think
        return self.renderer.render(_FUEL, _OUTPUT, variables)

    def _message(self, turn: Turn) -> dict[str, Any]:
        message: dict[str, Any] = {"role": turn.role, "content": turn.content}
        if self.listed:
            message["content"] = [{"type": "text", "text": turn.content}]
        if turn.thinking:
            message |= {"reasoning_content": turn.thinking, "thinking": turn.thinking}
        if turn.tool_calls:
            message["tool_calls"] = [self._call(call) for call in turn.tool_calls]
            if self.none and not turn.content:
                message["content"] = None
        if turn.role == "tool":
            message |= {"name": turn.tool_name, "tool_call_id": turn.tool_call_id}
        return message

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call["function"]
        arguments = function["arguments"]
        if self.textual:
            arguments = json.dumps(arguments, ensure_ascii=False)
        written = {"name": function["name"], "arguments": arguments}
        return {"id": call.get("id", ""), "type": "function", "function": written}


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


def attempt(
    rendering: Rendering,
    turns: Sequence[Turn],
    tools: Sequence[Mapping[str, Any]],
    think: Think,
    generates: bool,
) -> str | None:
    """What a template writes; None where it refuses or fails."""
    try:
        return rendering.render(turns, tools=tools, think=think, add_generation_prompt=generates)
    except (PronkError, GoTemplateError, Complaint, Broken):
        return None


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
