"""Calls in answers that are messages on channels: `to=functions.f` stands in a message's header."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .calls import Entry
from .lark import Rules, any_of, joined, literal
from .tools import Tool

PROMPT = "<|start|>assistant"
"""How a prompt ends: the header of the first message has begun there."""

FINAL = "<|start|>assistant<|channel|>final<|message|>"

_IN_CHANNEL = (
    "<|channel|>commentary to=functions.",
    "<|channel|>analysis to=functions.",
)
_IN_ROLE = "<|start|>assistant to=functions."
_CALL = "<|call|>"
_NAME = re.compile(r"[^\s<]{1,200}")


def entries(tools: Sequence[Tool], ends: Sequence[str]) -> list[Entry]:
    """The one way into calls. A call ends the answer."""
    rules = Rules()
    callable_ = [tool for tool in tools if _NAME.fullmatch(tool.name)]
    if not callable_:
        return []
    in_channel = f"{literal(PROMPT)}? {any_of(map(literal, _IN_CHANNEL))}"
    head = any_of((in_channel, literal(_IN_ROLE)))
    gap = rules.add('( "<|channel|>commentary" )? ( " "? "<|constrain|>"? "json" )? "<|message|>"')
    ways = any_of(joined(literal(tool.name), gap, rules.json(tool.schema)) for tool in callable_)
    end = "" if _CALL in ends else literal(_CALL)
    return [Entry((*_IN_CHANNEL, _IN_ROLE), rules.text(joined(head, ways, end)), strict=True)]
