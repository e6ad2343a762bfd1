"""Formats of answers, tools, and models that are led through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pronk.protocol.messages.generation import ToolChoice
from pronk.workers.conversation.formats.description import (
    Calls,
    Format,
    Markers,
    Parameter,
    Reasoning,
    Syntax,
)
from pronk.workers.conversation.formats.parser import AnswerParser
from pronk.workers.conversation.formats.said import Call, Said, Thinking, joined
from pronk.workers.inference.constraints import ConstraintCompiler
from pronk.workers.inference.guiding.guide import Guide
from pronk.workers.inference.guiding.maker import GuideMaker, Wish
from pronk.workers.inference.llama import Model
from support.models import Shape, Vocabulary, invent_vocabulary, write_random_model

SIGNALS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|cs|>", "<|ce|>"),
    *("<|b|>", "<|e|>", "<|a|>", "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"),
    *("<|end|>", "<|call|>", "<|return|>", "</parameter>"),
)
"""Tokens of their own in the random model."""

_THINK = Reasoning("<think>", "</think>")
_NAME, _ARGUMENTS = ("name",), ("arguments",)


def _object(**changes: Any) -> Calls:
    return Calls(Syntax.OBJECT, **{"name": _NAME, "arguments": _ARGUMENTS, **changes})


FORMATS = {
    "marked": Format(_THINK, calls=_object(each=Markers("<tool_call>\n", "\n</tool_call>"))),
    "listed": Format(
        calls=_object(section=Markers("[TOOL_CALLS] "), listed=True, separator=", ", id=("id",))
    ),
    "bare": Format(calls=_object(arguments=("parameters",), several=False)),
    "bare list": Format(calls=_object(listed=True, separator=", ")),
    "nested": Format(
        calls=_object(
            each=Markers("<call>", "</call>"),
            name=("function", "name"),
            arguments=("function", "arguments"),
            id=("id",),
            constants=(("type", "function"),),
        )
    ),
    "textual": Format(calls=_object(each=Markers("<call>", "</call>"), textual=True)),
    "keyed": Format(calls=_object(each=Markers("<call>", "</call>"), name=(), arguments=())),
    "named": Format(
        _THINK,
        calls=Calls(
            Syntax.NAMED,
            section=Markers("<|cs|>", "<|ce|>"),
            each=Markers("<|b|>functions.", "<|e|>"),
            fields=("name", "index"),
            between=(":", "<|a|>"),
        ),
    ),
    "named, open": Format(
        calls=Calls(
            Syntax.NAMED, each=Markers("[TOOL_CALLS]"), fields=("name",), between=("[ARGS]",)
        )
    ),
    "identified": Format(
        calls=Calls(
            Syntax.NAMED,
            each=Markers("<|b|>", "<|e|>"),
            fields=("id", "name"),
            between=(" to=", "<|a|>"),
        )
    ),
    "loose": Format(
        calls=Calls(
            Syntax.NAMED,
            each=Markers("<|b|>call:", "<|e|>"),
            fields=("name",),
            between=("",),
            quote="<|q|>",
        )
    ),
    "named twice": Format(
        calls=Calls(
            Syntax.NAMED,
            each=Markers("<|b|>", "<|e|>"),
            fields=("name", "name"),
            between=("<|a|>f=", ">"),
        )
    ),
    "tagged": Format(
        _THINK,
        calls=Calls(
            Syntax.TAGGED,
            each=Markers("<tool_call>\n<function=", "</function>\n</tool_call>"),
            fields=("name",),
            between=(">\n",),
            parameter=Parameter("<parameter=", ">\n", "\n</parameter>\n"),
        ),
    ),
    "tagged, typed": Format(
        calls=Calls(
            Syntax.TAGGED,
            section=Markers("<calls>", "</calls>"),
            each=Markers('<invoke name="', "</invoke>"),
            fields=("name",),
            between=('">',),
            parameter=Parameter(
                '<p name="',
                '" string="true">',
                "</p>",
                other_middles=tuple(
                    (kind, '" string="false">')
                    for kind in ("number", "boolean", "array", "object", "null")
                ),
            ),
        )
    ),
    "tagged, kinds": Format(
        calls=Calls(
            Syntax.TAGGED,
            each=Markers('<call f="', "</call>"),
            fields=("name",),
            between=('">',),
            parameter=Parameter(
                '<p name="',
                '" type="string">',
                "</p>",
                other_middles=tuple(
                    (kind, f'" type="{kind}">')
                    for kind in ("number", "boolean", "array", "object", "null")
                ),
            ),
        )
    ),
    "python": Format(
        calls=Calls(Syntax.PYTHON, section=Markers("<|cs|>", "<|ce|>"), listed=True, separator=", ")
    ),
    "bare python": Format(calls=Calls(Syntax.PYTHON, listed=True, separator=", ")),
    "harmony": Format(
        Reasoning("<|channel|>analysis<|message|>", "<|end|>", levels=True), harmony=True
    ),
}

_CLOSERS = ("<|q|>", "</parameter>", "</p>", "<|end|>", "</think>")

OPENINGS = {
    "marked": ("Well, <tool_call>", "<tool_call>\n{", "<think>so</think>\n\n<tool_call>"),
    "listed": ("[TOOL_CALLS]", "Let me see. [TOOL_CALLS] ["),
    "bare": ('{"name"', '\n{ "name": "'),
    "bare list": ('[{"name"',),
    "nested": ("I will. <call>",),
    "textual": ("<call>",),
    "keyed": ("<call>{",),
    "named": ("Yes: <|cs|>", "<|b|>"),
    "named, open": ("[TOOL_CALLS]",),
    "identified": ("<|b|>",),
    "loose": ("<|b|>call:", "So <|b|>call"),
    "named twice": ("<|b|>",),
    "tagged": ("<tool_call>\n<function", "No. <tool_call>"),
    "tagged, typed": ("<calls>", '<calls><invoke name="'),
    "tagged, kinds": ("<call",),
    "python": ("Now <|cs|>[",),
    "bare python": ("[now(", "[weather("),
    "harmony": ("<|channel|>commentary to=functions.",),
}
"""Beginnings of answers in which a call is open."""

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "What the weather is like.",
            "parameters": {
                "type": "object",
                "properties": {
                    "unit": {"type": "string", "enum": ["c", "f"]},
                    "days": {"type": "integer", "minimum": 0, "maximum": 9},
                    "places": {
                        "type": "array",
                        "items": {"type": "string", "maxLength": 5},
                        "maxItems": 2,
                    },
                    "exact": {"type": "boolean"},
                },
                "required": ["unit", "exact"],
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]


def tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def write_model(path: Path, seed: int = 0) -> None:
    """A small random model that has `SIGNALS`."""
    rng = np.random.default_rng(seed)
    made = invent_vocabulary(700, rng)
    ordinary, ends = made.tokens[:-3], made.tokens[-3:]
    vocabulary = Vocabulary([*ordinary, *SIGNALS, *ends], made.merges, signals=len(SIGNALS))
    shape = Shape(len(vocabulary.tokens), 64, 1, 2, 2, 64, context=4096)
    write_random_model(path, shape, vocabulary, rng)


@dataclass
class Led:
    """A vocabulary, and guides for its answers."""

    model: Model
    maker: GuideMaker

    @classmethod
    def open(cls, path: Path) -> Led:
        model = Model(path)
        return cls(model, GuideMaker(model.vocabulary, ConstraintCompiler(model.vocabulary)))

    @cached_property
    def pieces(self) -> list[bytes]:
        vocabulary = self.model.vocabulary
        return [vocabulary.written(token) for token in range(vocabulary.size)]

    @cached_property
    def ends(self) -> list[int]:
        return list(self.model.vocabulary.end_tokens)

    @cached_property
    def closing(self) -> list[int]:
        """Tokens that bring a value to an end, and those that do so to other things."""
        ends = (b'"', b"}", b"]", b")", b",", b"<", b"\\")
        return [token for token, piece in enumerate(self.pieces) if piece.strip()[:1] in ends]

    def guide(
        self,
        name: str,
        wish: Wish | None = None,
        *,
        opened: bool = False,
    ) -> Guide:
        guide = self.maker.make(FORMATS[name], wish or Wish(TOOLS), opened=opened)
        assert isinstance(guide, Guide)
        return guide

    def text(self, tokens: Sequence[int]) -> str:
        """What a parser is given: signals as they are written, without the end."""
        pieces = [self.pieces[token] for token in tokens if token not in self.ends]
        return b"".join(pieces).decode("utf-8", "replace")

    def tokens(self, text: str) -> list[int]:
        return self.model.vocabulary.tokenize(text)

    def walk(
        self, guide: Guide, seed: int, start: Sequence[int] = (), *, limit: int = 3000
    ) -> list[int]:
        """A random answer that begins with `start`, of a model that likes to come to an end."""
        rng = np.random.default_rng(seed)
        answer = list(start)
        closer: list[int] = []
        for token in start:
            guide.accept(token)
        while len(answer) < limit:
            token = guide.forced
            if token is None:
                logits = rng.gumbel(size=len(self.pieces)).astype(np.float32)
                logits[self.closing] += 6
                logits[self.ends] += 14
                guide.apply(logits)
                if len(answer) % 40 == 39:  # texts without quotes have no other end
                    closer = self.tokens(_CLOSERS[len(answer) // 40 % len(_CLOSERS)])
                if closer and np.isfinite(logits[closer[0]]):
                    logits[closer.pop(0)] = np.inf
                else:
                    closer.clear()
                token = int(logits.argmax())
                assert logits[token] > -np.inf
            guide.accept(token)
            answer.append(token)
            if token in self.ends:
                return answer
        raise AssertionError(f"no end: {self.text(answer)[:500]}")

    def forbidden(self, guide: Guide) -> set[bytes]:
        """Tokens that may not come next."""
        logits = np.zeros(len(self.pieces), np.float32)
        guide.apply(logits)
        return {self.pieces[token] for token in np.flatnonzero(np.isinf(logits))}


def parse(
    name: str, text: str, tools: Sequence[Mapping[str, Any]] = TOOLS, *, opened: bool = False
) -> list[Said]:
    parser = AnswerParser(FORMATS[name], opened=opened, tools=tools)
    return joined([*parser.push(text), *parser.finish()])


def calls_in(said: Sequence[Said]) -> list[Call]:
    return [part for part in said if isinstance(part, Call)]


def thought_in(said: Sequence[Said]) -> str:
    return "".join(part.text for part in said if isinstance(part, Thinking))


REQUIRED = Wish(TOOLS, ToolChoice.REQUIRED, think=False)
