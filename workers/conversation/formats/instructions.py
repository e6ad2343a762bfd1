"""Formats of templates that do not write the calls of earlier messages.

What the template tells the model is then all there is to go by.
"""

from __future__ import annotations

import re

from .description import Calls, Markers, Syntax

_EXAMPLE = re.compile(
    r"(?P<start><[^<>/\s]{1,60}>|\[[A-Z_]{1,60}\])?\s{0,9}(?P<list>\[?)\s{0,9}"
    r'\{\s{0,9}"(?P<name>name|tool_name)"\s{0,9}:[^,{}]{0,80},'
    r'\s{0,9}"(?P<arguments>arguments|parameters)"\s{0,9}:'
    r"(?P<rest>[^\n]{0,200}\n?\s{0,9}(?:</[^<>\s]{1,60}>)?)"
)
_PYTHON = re.compile(
    r"(?P<start><[^<>/\s]{1,60}>)?\s{0,9}\[\s{0,9}\w{1,60}\(\s{0,9}\w{1,60}\s?=\s?[^\n]{1,400}"
)
_MARKER = re.compile(r"<\|?[a-z_:]{0,20}tool_?calls?\|?>|\[TOOL_CALLS\]", re.IGNORECASE)
_CLOSING = re.compile(r"</[^<>\s]{1,60}>")


def instructed(prompt: str) -> Calls | None:
    """How a prompt that offers tools wants calls to be written, if it says so plainly."""
    if "<|tool_list_start|>" in prompt:
        return _LISTED_IN_PYTHON
    for example in _EXAMPLE.finditer(prompt):
        start = example["start"] or ""
        closing = _CLOSING.search(example["rest"])
        if start.startswith("<tools") or (start and not (closing or "|" in start)):
            continue
        return Calls(
            Syntax.OBJECT,
            section=Markers(start, closing[0] if closing else "") if example["list"] else Markers(),
            each=Markers() if example["list"] else Markers(start, closing[0] if closing else ""),
            listed=bool(example["list"]),
            rendered=False,
            name=(example["name"],),
            arguments=(example["arguments"],),
        )
    if example := _PYTHON.search(prompt):
        start = example["start"] or ""
        closing = _CLOSING.search(example[0]) if start else None
        if not start or closing:
            return Calls(
                Syntax.PYTHON,
                section=Markers(start, closing[0] if closing else ""),
                separator=", ",
                listed=True,
                rendered=False,
            )
    if marker := _MARKER.search(prompt):
        return Calls(
            Syntax.OBJECT,
            section=Markers(marker[0]),
            listed=True,
            rendered=False,
            name=("name",),
            arguments=("arguments",),
        )
    return None


_LISTED_IN_PYTHON = Calls(
    Syntax.PYTHON,
    section=Markers("<|tool_call_start|>", "<|tool_call_end|>"),
    separator=", ",
    listed=True,
    rendered=False,
)
"""LFM2: a model that finds its tools in such a list calls them in a list, of which its template
says nothing."""
