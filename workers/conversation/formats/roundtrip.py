"""Whether a format brings back what a template writes: standard conversations, case by case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from ..rendering import Rendering, attempt
from ..turns import Turn
from .description import Format, Reasoning
from .parser import AnswerParser
from .probing import common_start, up_to_end
from .reasoning import is_thought, without_reasoning
from .said import Call, Content, Said, Thinking, joined
from .writing import write_answer

_QUESTION = "What is to be done?"
_TEXT = "I shall look that up: one moment, please."
_THOUGHT = "The user wants to know this.\nSo a tool may help; 2 < 3."


class Outcome(StrEnum):
    """What became of a case."""

    PASSED = "passed"
    FAILED = "failed"
    LEFT_OUT = "left out"
    """The template refuses such a message, or does not write all of it."""


@dataclass(frozen=True, slots=True)
class Result:
    """One case, and why it is not passed."""

    case: str
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """An assistant's message that is to come back."""

    name: str
    content: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()

    @property
    def said(self) -> list[Said]:
        """What the parser is to say, as a template may order it."""
        parts: list[Said] = []
        parts += [Thinking(self.thinking)] if self.thinking else []
        parts += [Content(self.content)] if self.content else []
        return [*parts, *self.calls]


_WEATHER = Call("get_weather", {"city": "Lhasa", "unit": "celsius"}, "Aa1Bb2Cc3")
_TIME = Call("get_time", {"zone": "Asia/Tokyo"}, "Dd4Ee5Ff6")
_NESTED = Call(
    "book_trip",
    {
        "title": 'Señor "Ä" goes to 東京 🦙\nand back \\ again, it\'s 5 < 6 & {so} on',
        "code": "0012",
        "count": 12,
        "price": -3.5,
        "now": True,
        "later": None,
        "stops": [{"name": "Zürich", "nights": 2}, {"name": "b", "nights": 0}],
        "options": {"seat": {"row": 4, "aisle": False}, "notes": []},
    },
    "Gg7Hh8Ii9",
)
_BARE = Call("list_all", {}, "Jj1Kk2Ll3")

CASES = (
    Case("text", _TEXT),
    Case("one call", calls=(_WEATHER,)),
    Case("two calls", calls=(_WEATHER, _TIME)),
    Case("a call after text", _TEXT, calls=(_WEATHER,)),
    Case("nested arguments and unicode", calls=(_NESTED,)),
    Case("a call without arguments", calls=(_BARE,)),
    Case("reasoning before text", _TEXT, _THOUGHT),
    Case("reasoning before a call", thinking=_THOUGHT, calls=(_WEATHER,)),
    Case("reasoning, text and two calls", _TEXT, _THOUGHT, (_WEATHER, _NESTED)),
)

_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}


def _tool(call: Call) -> dict[str, Any]:
    properties = {
        key: {"type": _TYPES.get(type(value), "object" if value is not None else "null")}
        | {"description": "A parameter."}
        for key, value in call.arguments.items()
    }
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": call.name, "description": "A tool.", "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [_tool(call) for call in (_WEATHER, _TIME, _NESTED, _BARE)]


def round_trip(form: Format, *renderings: Rendering) -> list[Result]:
    """Every case: what the template writes, read in pieces of every size.

    `renderings` are tried in turn until one writes the case whole.
    """
    return [_tried(case, form, renderings) for case in CASES]


def _tried(case: Case, form: Format, renderings: Sequence[Rendering]) -> Result:
    if form.harmony and case.content and case.calls:
        reason = "the template writes text beside a call as reasoning"
        return Result(case.name, Outcome.LEFT_OUT, reason)
    if form.calls and not form.calls.rendered and case.calls:
        written = write_answer(form, case.content, case.thinking, case.calls)
        if case.thinking and not form.reasoning:
            return Result(case.name, Outcome.LEFT_OUT, "the template writes no reasoning")
        return _read(case, form, written, "")
    reason = "the template refuses such a message"
    for rendering in renderings:
        for prompt, text in _written(case, form, rendering):
            missing = _missing(case, form, prompt, text)
            if not missing:
                if form.reasoning and text.lstrip().startswith(case.thinking or "\0"):
                    prompt += form.reasoning.start  # as prompts end, if not earlier messages
                return _read(case, form, text, prompt)
            reason = f"the template does not write {missing}"
    if case.thinking and form.reasoning and not form.harmony:
        return _with_reasoning(case, form, form.reasoning, renderings, reason)
    return Result(case.name, Outcome.LEFT_OUT, reason)


def _with_reasoning(
    case: Case,
    form: Format,
    reasoning: Reasoning,
    renderings: Sequence[Rendering],
    reason: str,
) -> Result:
    """A case whose reasoning no template writes: it is put where the prompt has it begin."""
    plain = replace(case, thinking="")
    for rendering in renderings:
        for prompt, text in _written(plain, form, rendering):
            if not _missing(plain, form, prompt, text):
                text = without_reasoning(reasoning, prompt, text)
                start = "" if form.opened_by(prompt) else reasoning.start
                text = f"{start}{case.thinking}{reasoning.end}{text}"
                return _read(case, form, text, prompt)
    return Result(case.name, Outcome.LEFT_OUT, reason)


def _written(case: Case, form: Format, rendering: Rendering) -> Iterator[tuple[str, str]]:
    """The prompt before an answer, and the answer, in the ways in which it may be asked for."""
    given = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in case.calls
    ]
    user = Turn("user", _QUESTION)
    said = Turn("assistant", case.content, case.thinking, given)
    results = [
        Turn("tool", "It is done.", tool_name=call.name, tool_call_id=call.id)
        for call in case.calls
    ]
    for think in (True, None) if case.thinking else (None, False):
        for tools in (TOOLS, []):
            prompt = attempt(rendering, [user], tools, think, True)
            if prompt is None:
                continue
            for after in ([], results) if results else ([], [Turn("user", "Thank you.")]):
                whole = attempt(rendering, [user, said, *after], tools, think, False)
                if whole is not None:
                    cut = common_start(prompt, whole)
                    text = whole[cut:]
                    if _QUESTION in text:  # tools are shown beside the last question only
                        continue
                    names = [call.name for call in case.calls]
                    texts = (case.thinking, case.content)
                    yield whole[:cut], up_to_end(text, form.end, texts, names)


def _missing(case: Case, form: Format, prompt: str, text: str) -> str:
    if case.thinking and case.thinking.splitlines()[0] not in text:
        return "the reasoning"
    if case.content and case.content not in text:
        return "the text"
    if case.content and case.calls and is_thought(form.reasoning, prompt, text, case.content):
        return "the text, but as reasoning"
    if any(call.name not in text for call in case.calls):
        return "the call" if len(case.calls) == 1 else "all of the calls"
    return ""


def _read(case: Case, form: Format, text: str, prompt: str) -> Result:
    has_id = bool(form.calls and (form.calls.id or "id" in form.calls.fields))
    wanted = _comparable(case.said, has_id)
    if case.calls and 0 <= text.find(case.calls[0].name) < text.find(case.content):
        wanted.sort(key=lambda part: isinstance(part, Content))
    for size in range(1, max(len(text), 1) + 1):
        parser = AnswerParser.behind(prompt, form, tools=TOOLS)
        said: list[Said] = []
        for at in range(0, len(text), size):
            said += parser.push(text[at : at + size])
        said += parser.finish()
        found = _comparable(joined(said), has_id)
        if found != wanted:
            reason = f"in pieces of {size}: {_shown(found)} instead of {_shown(wanted)}"
            return Result(case.name, Outcome.FAILED, reason)
    return Result(case.name, Outcome.PASSED)


def _comparable(parts: Sequence[Said], has_id: bool) -> list[Said]:
    """Without white space at the ends of texts, of which templates take away what they like."""
    result: list[Said] = []
    for part in parts:
        match part:
            case Content(text) if text.strip():
                result.append(Content(text.strip()))
            case Thinking(text) if text.strip():
                result.append(Thinking(text.strip()))
            case Call(name, arguments, id):
                result.append(Call(name, arguments, id if has_id else ""))
            case _:
                pass
    return result


def _shown(parts: Sequence[Said]) -> str:
    text = ", ".join(map(repr, parts)) or "nothing"
    return text if len(text) <= 600 else f"{text[:600]}…"
