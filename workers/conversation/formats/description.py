"""The description of a format: small, made of plain data, the same for every family.

An answer is text, with reasoning and calls between markers. A marker is the text that stands there,
white space included; whoever reads an answer does not insist on the white space.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

HARMONY = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>")
"""Where an answer consists of messages on channels."""


@dataclass(frozen=True, slots=True)
class Markers:
    """What stands before and after something. Both may be empty."""

    start: str = ""
    end: str = ""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How a model thinks aloud."""

    start: str
    end: str
    switchable: bool = False
    """Whether a request can turn it on or off."""
    levels: bool = False
    """Whether a request can say how much."""
    opens: tuple[str, ...] = ()
    """When the prompt itself begins it: `default`, `on`, `off`, as a request has it."""


class Syntax(StrEnum):
    """How one call is written."""

    OBJECT = "object"
    """`{"name": "f", "arguments": {…}}`, with whatever keys."""
    NAMED = "named"
    """The name, something between, and the arguments as a JSON object."""
    TAGGED = "tagged"
    """The name, then each argument between markers of its own."""
    PYTHON = "python"
    """`f(a="x", b=1)`."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """How one argument of a tagged call is written: start, key, middle, value, end."""

    start: str
    middle: str
    end: str
    separator: str = ""
    other_middles: tuple[tuple[str, str], ...] = ()
    """The middle for each kind of value that is no string, as JSON Schema names it, where that
    differs."""
    quoted: bool = False
    """Whether a string is written as JSON, else as it is."""

    def middle_of(self, kind: str) -> str:
        """What stands between a key and a value of a kind."""
        kind = "number" if kind == "integer" else kind
        return dict(self.other_middles).get(kind, self.middle)


@dataclass(frozen=True, slots=True)
class Calls:
    """How calls are written."""

    syntax: Syntax
    section: Markers = field(default_factory=Markers)
    """Around all calls of an answer."""
    each: Markers = field(default_factory=Markers)
    """Around one call."""
    separator: str = ""
    listed: bool = False
    """Whether `[` and `]` stand around all calls, and commas between them."""
    several: bool = True
    """Whether an answer may have more than one."""
    rendered: bool = True
    """Whether the template writes the calls of earlier messages."""
    name: tuple[str, ...] = ()
    """OBJECT: the keys on the way to the name. Empty where the name is the key of the arguments."""
    arguments: tuple[str, ...] = ()
    """OBJECT: the keys on the way to the arguments."""
    id: tuple[str, ...] = ()
    """OBJECT: the keys on the way to the call's id, if it has one."""
    textual: bool = False
    """OBJECT: whether the arguments are a string with JSON in it."""
    constants: tuple[tuple[str, str], ...] = ()
    """OBJECT: keys whose value is always the same text, such as `type`."""
    fields: tuple[str, ...] = ()
    """NAMED, TAGGED: what stands before the arguments: `name`, perhaps twice, `id` and `index`."""
    between: tuple[str, ...] = ()
    """The text behind each of these."""
    quote: str = ""
    """NAMED: what stands around texts in arguments whose keys are bare. Empty where they are JSON.
    """
    parameter: Parameter | None = None
    """TAGGED: how one argument is written."""

    @property
    def is_announced(self) -> bool:
        """Whether a marker stands before calls, so that they can be told from text."""
        return bool(self.section.start.strip() or self.each.start.strip())


@dataclass(frozen=True, slots=True)
class Format:
    """How a model writes its answers, and what it can do."""

    reasoning: Reasoning | None = None
    content: Markers = field(default_factory=Markers)
    """Around the text for the reader."""
    calls: Calls | None = None
    silent: tuple[str, ...] = ()
    """Other markers that are not shown: what stands between the parts of an answer."""
    lead: str = ""
    """The end of the prompt where that is the beginning of a marker already."""
    end: str = ""
    """What a template writes behind an answer, if anything. No answer has it in it."""
    tools: bool = False
    """Whether tools can be offered to the model."""
    mixed: bool = False
    """Whether an earlier message may have text and calls."""
    harmony: bool = False
    """Whether the answer consists of messages on channels, each with a header."""

    @property
    def plain(self) -> bool:
        """Whether all of an answer is text for the reader."""
        marked = self.content != Markers() or self.silent
        return not (self.reasoning or self.calls or self.harmony or marked)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """As `/api/show` names them, without what does not depend on the template."""
        tools = ("tools",) if self.tools and (self.calls or self.harmony) else ()
        return tools + (("thinking",) if self.reasoning else ())

    def opened_by(self, prompt: str) -> bool:
        """Whether reasoning has begun where a prompt ends."""
        if self.reasoning is None or self.harmony:
            return False
        return prompt.rstrip().endswith(self.reasoning.start.strip())

    @property
    def markers(self) -> tuple[str, ...]:
        """Every text that an answer is read by. Where one is, or has in it, a control token of
        the model, that token has to reach the parser as text.
        """
        texts = [self.lead, self.content.start, self.content.end, *self.silent]
        if self.reasoning:
            texts += [self.reasoning.start, self.reasoning.end]
        if calls := self.calls:
            texts += [calls.section.start, calls.section.end, calls.each.start, calls.each.end]
            texts += [calls.separator, *calls.between, calls.quote]
            if parameter := calls.parameter:
                texts += [parameter.start, parameter.middle, parameter.end, parameter.separator]
                texts += [middle for _, middle in parameter.other_middles]
        texts += HARMONY if self.harmony else ()
        return tuple(dict.fromkeys(filter(None, map(str.strip, texts))))

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` reads it."""
        data = asdict(self)
        if self.calls:
            data["calls"]["syntax"] = self.calls.syntax.value
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Format:
        """Raises `TypeError`, `KeyError` or `ValueError` where it was not `to_json` that wrote."""
        values = dict(data)
        if values["reasoning"] is not None:
            reasoning = values["reasoning"]
            values["reasoning"] = Reasoning(**reasoning | {"opens": tuple(reasoning["opens"])})
        values["content"] = Markers(**values["content"])
        values["silent"] = tuple(values["silent"])
        if values["calls"] is not None:
            values["calls"] = _calls(values["calls"])
        return cls(**values)


def _calls(data: dict[str, Any]) -> Calls:
    values = dict(data)
    values["syntax"] = Syntax(values["syntax"])
    for name in ("section", "each"):
        values[name] = Markers(**values[name])
    for name in ("name", "arguments", "id", "between", "fields"):
        values[name] = tuple(values[name])
    values["constants"] = tuple((key, value) for key, value in values["constants"])
    if values["parameter"] is not None:
        parameter = values["parameter"]
        middles = tuple((kind, middle) for kind, middle in parameter["other_middles"])
        values["parameter"] = Parameter(**parameter | {"other_middles": middles})
    return Calls(**values)


TEXT_ALONE = Format()
"""All of an answer is text."""
