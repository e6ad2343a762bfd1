"""Finds out what a template takes, by small conversations and what it makes of them.

A template takes what it writes: one that drops a message silently is no better than one that
refuses it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from .go_chat import Think
from .jinja import Broken, Complaint
from .rendering import Write
from .traits import Traits, adapted
from .turns import Turn

_FIRST = "bcdfghjklmnpqrstvwxz"
_words = random.SystemRandom().sample(_FIRST, 14)
_TAIL = "".join(random.SystemRandom().choices(_FIRST, k=8))
# No template has these words, and none can know them, to behave well as long as it is tried.
_RULES, _ASKED, _SAID, _LATER, _AGAIN, _NAME, _KEY = (f"{first}{_TAIL}" for first in _words[:7])
_VALUE, _RESULT, _OTHER, _OTHER_VALUE, _OTHER_RESULT, _THOUGHT, _TOOL = (
    f"{first}{_TAIL}" for first in _words[7:]
)

_USER = Turn("user", _ASKED)
_ASSISTANT = Turn("assistant", _SAID)
_MARKER = re.compile(r"(<[^<>\s]{1,64}>|\[[^\[\]\s]{1,64}\])\s*\Z")
_LITERAL = re.compile(r"'([^'\n]{1,80})'|\"([^\"\n]{1,80})\"")
_MOST_LITERALS = 20_000
_LONG = 200
"""Messages in the longest conversation that is tried."""


def _called(name: str, value: str, id_: str) -> dict[str, Any]:
    arguments = {_KEY: value, "yes": True, "non": None}
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def _tool(name: str) -> dict[str, Any]:
    properties = {_KEY: {"type": "string", "description": "x"}}
    parameters = {"type": "object", "properties": properties, "required": [_KEY]}
    function = {"name": name, "description": "x", "parameters": parameters}
    return {"type": "function", "function": function}


_CALLING = Turn("assistant", "", tool_calls=[_called(_NAME, _VALUE, "call_1")])
_ANSWERED = Turn("tool", _RESULT, tool_name=_NAME, tool_call_id="call_1")
_OFFERED = [_tool(_TOOL)]


def find_traits(source: str, write: Write) -> Traits:
    """What the template takes. Raises `Broken` where it cannot even write one question."""
    probing = _Probing(write)
    traits = _content(probing)
    if not probing.shows([Turn("system", _RULES), _USER], traits, _RULES, _ASKED):
        traits = replace(traits, system="none")
    else:
        talk = [Turn("system", _RULES), _USER, _ASSISTANT, Turn("system", _AGAIN)]
        if not probing.shows(
            [*talk, Turn("user", _LATER)], traits, _RULES, _ASKED, _SAID, _AGAIN, _LATER
        ):
            traits = replace(traits, system="first")
    traits = replace(
        traits,
        alternates=not probing.shows([_USER, Turn("user", _LATER)], traits, _ASKED, _LATER),
        user_first=probing.shows([_USER, _ASSISTANT, Turn("user", _LATER)], traits, _SAID)
        and not probing.shows([_ASSISTANT, _USER], traits, _SAID, _ASKED),
        empty=probing.text([], traits) is not None,
        system_alone=probing.shows([Turn("system", _RULES)], traits, _RULES),
        tools=probing.shows([_USER], traits, _TOOL, tools=_OFFERED),
    )
    traits = _calling(probing, traits)
    traits = _thinking(probing, source, traits)
    _strain(probing, source, traits)
    return traits


class _Probing:
    def __init__(self, write: Write) -> None:
        self._write = write
        self.reason: Complaint | Broken | None = None
        """Why the last one failed."""

    def text(
        self,
        turns: Sequence[Turn],
        traits: Traits,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        think: Think = None,
    ) -> str | None:
        """What the template writes, or None where it refuses or fails."""
        try:
            return self._write(adapted(turns, traits), traits, tools, think)
        except (Complaint, Broken) as reason:
            self.reason = reason
            return None

    def shows(
        self,
        turns: Sequence[Turn],
        traits: Traits,
        *words: str,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> bool:
        """Whether it writes all of these words."""
        text = self.text(turns, traits, tools=tools)
        return text is not None and all(word in text for word in words)


def _content(probing: _Probing) -> Traits:
    text, listed = Traits(), Traits(listed_content=True)
    if probing.shows([_USER], text, _ASKED):
        return text
    reason, probing.reason = probing.reason, None
    if probing.shows([_USER], listed, _ASKED):
        return listed
    others = ([Turn("system", _RULES), _USER], [_USER, _ASSISTANT, Turn("user", _LATER)])
    if isinstance(reason, Broken) and not any(probing.shows(t, text, _ASKED) for t in others):
        raise reason
    return text


def _calling(probing: _Probing, traits: Traits) -> Traits:
    """How calls and their results are written."""
    words = (_NAME, _VALUE, _RESULT)
    talk = [_USER, _CALLING, _ANSWERED]
    ways = [
        replace(
            traits, empty_part=part, arguments_as_text=as_text, short_ids=short, null_content=null
        )
        for part in (False, True)[: 1 + traits.listed_content]
        for as_text, null, short in product((False, True), repeat=3)
    ]
    for way in ways:
        for tools in ((), _OFFERED):
            if probing.shows(talk, way, *words, tools=tools):
                return _refined(probing, way, tools)
    for calls, results in ((False, True), (True, False)):
        for way in ways:
            way = replace(way, calls=calls, results=results)
            if probing.shows(talk, way, *words):
                return _refined(probing, way, ()) if calls else way
    return replace(traits, calls=False, results=False)


def _refined(probing: _Probing, traits: Traits, tools: Sequence[Mapping[str, Any]]) -> Traits:
    """The rest, once it is known that calls are written at all."""
    talk = [_USER, _CALLING, _ANSWERED]
    if not traits.arguments_as_text:
        as_text = replace(traits, arguments_as_text=True)
        objects, texts = probing.text(talk, traits), probing.text(talk, as_text)
        whole = f'"{_KEY}": "{_VALUE}", "yes": true, "non": null'
        if objects and texts and whole in texts and _is_literal(objects) and whole not in objects:
            traits = as_text  # it writes them as they come
    if not traits.null_content:
        without = probing.text(talk, replace(traits, null_content=True), tools=tools)
        usual = probing.text(talk, traits, tools=tools)
        if without and usual and without != usual and _none_in(without) <= _none_in(usual):
            traits = replace(traits, null_content=True)
    if not probing.shows([_USER, _CALLING], traits, _NAME, tools=tools):
        named = replace(traits, named_ids=True)
        if probing.shows([_USER, _CALLING], named, _NAME, _VALUE, tools=tools):
            traits = named
    if traits.results and not probing.shows([_USER, _ANSWERED], traits, _RESULT, tools=tools):
        traits = replace(traits, lone_results=False)
    other = _called(_OTHER, _OTHER_VALUE, "call_2")
    both = replace(_CALLING, tool_calls=[*_CALLING.tool_calls, other])
    second = Turn("tool", _OTHER_RESULT, tool_name=_OTHER, tool_call_id="call_2")
    several = [_USER, both, _ANSWERED, second]
    words = (_NAME, _VALUE, _RESULT, _OTHER, _OTHER_VALUE, _OTHER_RESULT)
    if not probing.shows(several, traits, *words, tools=tools):
        alone = replace(traits, single_calls=True)
        if probing.shows(several, alone, *words, tools=tools):
            traits = alone
    spoken = [_USER, replace(_CALLING, content=_SAID), _ANSWERED]
    thoughtful = [_USER, replace(_CALLING, content=_SAID, thinking=_THOUGHT), _ANSWERED]
    if (
        probing.text(spoken, traits, tools=tools) is not None
        and probing.text(thoughtful, traits, tools=tools) is None
    ):
        traits = replace(traits, thinking_alone=True)
    return traits


def _is_literal(text: str) -> bool:
    """Whether arguments are written as a program would, with `None` or `none`."""
    return bool(re.search(r"[\"']non[\"']: [Nn]one", text))


def _none_in(text: str) -> int:
    return text.lower().count("none") + text.count("null")


def _thinking(probing: _Probing, source: str, traits: Traits) -> Traits:
    yes = probing.text([_USER], traits, think=True)
    no = probing.text([_USER], traits, think=False)
    if yes is None or no is None:
        return traits
    traits = replace(traits, switches=yes != no)
    for prompt in (no, yes):
        found = _MARKER.search(prompt)
        closing = next((c for c in _closings(found[1]) if c in source), "") if found else ""
        if found and closing:
            return replace(traits, opens=found[1], closes=closing)
    return traits


def _closings(marker: str) -> list[str]:
    """How the end of what a marker begins may be written."""
    words = (("START", "END"), ("start", "end"), ("BEGIN", "END"), ("begin", "end"))
    return [
        f"{marker[0]}/{marker[1:]}",
        *(marker.replace(begin, end) for begin, end in words if begin in marker),
    ]


def _strain(probing: _Probing, source: str, traits: Traits) -> None:
    """Has the template write much, and what it asks for itself. It matters only whether that takes
    more memory or time than there is: whoever counts has limits for both.
    """
    literals = " ".join(a or b for a, b in _LITERAL.findall(source))[:_MOST_LITERALS]
    for words in (literals, f"{_SAID} " * 500):
        asked, said = Turn("user", words), replace(_ASSISTANT, content=words, thinking=words)
        probing.text([Turn("system", words), asked, said, asked], traits, tools=_OFFERED)
    talk = [asked, replace(_ASSISTANT, content=words)]
    probing.text([*(talk * (_LONG // 2)), _USER], traits)
