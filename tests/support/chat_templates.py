"""Small chat templates, written for these tests, as files beside the tests' data.

`ways` has one for each way of writing answers, `families` the ways of models that there are, in our
own words and shortened to what an answer depends on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_DATA = Path(__file__).parents[1] / "data" / "chat_templates"


@dataclass(frozen=True)
class Family:
    """A template, and which of the standard conversations it does not write."""

    name: str
    left_out: frozenset[str] = frozenset()
    go: bool = False
    folder: str = "ways"

    @cached_property
    def source(self) -> str:
        stem = self.name.replace(", ", "-").replace(" ", "-")
        suffix = ".gotmpl" if self.go else ".jinja"
        return (_DATA / self.folder / f"{stem}{suffix}").read_text()


_REASONING = {
    "reasoning before text",
    "reasoning before a call",
    "reasoning, text and two calls",
}
_CALLS = {
    "one call",
    "two calls",
    "a call after text",
    "nested arguments and unicode",
    "a call without arguments",
}

WAYS = [
    Family("hermes"),
    Family("content in parts"),
    Family("function object", frozenset(_REASONING)),
    Family("list with ids", frozenset(_REASONING)),
    Family("name, id, arguments", frozenset(_REASONING)),
    Family("bare object", frozenset(_REASONING | {"two calls", "a call after text"})),
    Family("bare list", frozenset(_REASONING)),
    Family("name in tag", frozenset(_REASONING)),
    Family("numbered", frozenset(_REASONING)),
    Family("fenced"),
    Family("tagged", frozenset(_REASONING)),
    Family("keys and values"),
    Family("typed parameters", frozenset(_REASONING)),
    Family("actions", frozenset({"a call after text", "reasoning, text and two calls"})),
    Family("python list", frozenset(_REASONING)),
    Family("bare python", frozenset(_REASONING)),
    Family("python lines", frozenset(_REASONING)),
    Family("name as key", frozenset(_REASONING)),
    Family("code block", frozenset(_REASONING)),
    Family("calls first", frozenset(_REASONING)),
    Family("id before name", frozenset(_REASONING)),
    Family("answer in tags"),
    Family("object around all", frozenset(_REASONING)),
    Family("quoted texts", frozenset(_REASONING)),
    Family(
        "asked in words",
        frozenset(_CALLS | _REASONING) - {"reasoning before text"},
    ),
    Family("recipients", frozenset(_REASONING)),
    Family("prompt thinks"),
    Family("latest reasoning"),
    Family("brackets"),
    Family("prose thoughts", frozenset(_CALLS | _REASONING) - {"reasoning before text"}),
    Family("instructed"),
    Family("plain", frozenset(_CALLS | _REASONING)),
    Family("alternating", frozenset(_CALLS | _REASONING)),
    Family("go chatml", go=True),
    Family("go bare", frozenset(_REASONING | {"a call after text"}), go=True),
    Family(
        "go list",
        frozenset(_REASONING | {"a call after text"}),
        go=True,
    ),
]

_BESIDE = {"a call after text", "reasoning, text and two calls"}


def _families(left_out: set[str], *names: str) -> list[Family]:
    return [Family(name, frozenset(left_out), folder="families") for name in names]


FAMILIES = [
    *_families(
        set(),
        "kimi-k3",
        "apriel-1.6",
        "deepseek-v3.2",
        "ernie-4.5",
        "exaone-4",
        "gemma-4",
        "glm-4.5",
        "glm-4.7",
        "hunyuan-a13b",
        "hyperclova-x-think",
        "kimi-k2-thinking",
        "lfm2.5",
        "longcat-flash",
        "magistral",
        "mimo-v2-flash",
        "minicpm-3",
        "minimax-m2",
        "ministral-3",
        "nemotron-nano-v2",
        "openpangu",
        "qwen3-vl",
        "qwen3.5",
        "qwq-32b",
        "reka-flash-3",
        "ring-1",
        "seed-oss",
        "solar-open",
        "step-3",
    ),
    *_families(
        _REASONING,
        "apertus",
        "command-r",
        "deepseek-v3",
        "falcon-3",
        "firefunction-v2",
        "functionary-v2",
        "functionary-v3.1",
        "functiongemma",
        "gigachat-3",
        "granite-4",
        "internlm2",
        "jamba-1.5",
        "llama-4-pythonic",
        "llama-4",
        "olmo-3",
        "phi-4-mini-tools",
        "toolace-2",
    ),
    *_families(
        _REASONING | {"a call after text"},
        "gemma-3-pythonic",
        "glm-4-9b",
        "granite-20b-functions",
        "llama-3-groq-tool-use",
        "minimax-m1",
        "xlam-2",
    ),
    *_families(_BESIDE, "command-a-reasoning", "muse"),
    *_families(_REASONING | {"two calls", "a call after text"}, "llama-3.1-builtin"),
    *_families((_CALLS | _REASONING) - {"reasoning before text"}, "exaone-deep"),
    *_families(_CALLS | _REASONING, "alpaca", "llama-2", "phi-4-mini", "vicuna"),
]

PARTLY_READ = {
    Family("chatglm-3", folder="families"): frozenset(_CALLS) - {"a call after text"},
}
"""Families of which cases fail: their calls cannot be told from text."""
