"""Chat templates: Jinja source from a model's file or from a request, so from anybody.

minijinja renders them: no Python object is within their reach, and fuel bounds their steps. Fuel
does not bound memory: one line that doubles a text takes gigabytes within a few steps. A model's
own template is its owner's choice, and bounded only by the worker's life; one that comes with a
request is rendered in a process of its own, where memory and time end before the worker's do.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from ...protocol.errors import Code, PronkError
from ...protocol.messages.generation import ChatMessage
from . import jinja
from .jinja import Broken, Complaint, Renderer

_log = logging.getLogger(__name__)

_FUEL = 200_000
_FUEL_PER_MESSAGE = 5_000
_OUTPUT = 1024 * 1024
"""Characters that a template may write beside eight times what it was given."""

_MEMORY = 512 * 1024 * 1024
"""Bytes for the process that renders a request's template, beside those for what it is given."""
_MEMORY_PER_CHARACTER = 64
_SECONDS = 10
_PATIENCE = 60.0
"""Seconds on the clock, which may have to be shared with whatever else the machine does."""


class _Template:
    """What is the same for every template: what it is given, and how much it may take."""

    def __init__(self, source: str, *, bos: str, eos: str) -> None:
        """`bos` and `eos` are the texts of the model's beginning and end tokens."""
        self._source = source
        self._globals: dict[str, Any] = {
            "bos_token": bos,
            "eos_token": eos,
            "add_generation_prompt": True,
            "tools": None,
            "documents": None,
        }

    def _variables(self, messages: Sequence[ChatMessage]) -> dict[str, Any]:
        conversation = [{"role": m.role, "content": m.content} for m in messages]
        return {"messages": conversation, **self._globals}


class ChatTemplate(_Template):
    """A model's own template, rendered the way Hugging Face's `apply_chat_template` does.

    May be used by several threads at once.
    """

    def __init__(self, source: str, *, bos: str, eos: str) -> None:
        super().__init__(source, bos=bos, eos=eos)
        self._of_thread = threading.local()

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """The prompt text of `messages`, up to where the assistant begins to speak.

        Raises `PronkError`: INVALID_REQUEST with the template's own words where it refuses the
        conversation, INTERNAL where the template itself fails.
        """
        renderer: Renderer | None = getattr(self._of_thread, "renderer", None)
        if renderer is None:
            renderer = self._of_thread.renderer = Renderer(self._source)
        fuel = _FUEL + _FUEL_PER_MESSAGE * len(messages)
        try:
            return renderer.render(fuel, _limit(messages), self._variables(messages))
        except Complaint as complaint:
            raise PronkError(
                Code.INVALID_REQUEST, f"the model's chat template refuses this: {complaint}"
            ) from None
        except Broken as broken:
            _log.warning("the chat template failed: %s", broken)
            raise PronkError(
                Code.INTERNAL,
                f"the model's chat template failed: {broken}; "
                "/api/generate with raw does without the template",
            ) from None


class RequestTemplate(_Template):
    """A template that came with a request. Beside the messages it is given their parts by name."""

    def render(self, messages: Sequence[ChatMessage], **parts: str) -> str:
        """The prompt text. Raises `PronkError` (INVALID_REQUEST) whatever goes wrong with it."""
        given = sum(len(message.content) for message in messages) + sum(map(len, parts.values()))
        order = {
            "source": self._source,
            "fuel": _FUEL,
            "limit": _limit(messages),
            "memory": _MEMORY + _MEMORY_PER_CHARACTER * (given + len(self._source)),
            "seconds": _SECONDS,
            "variables": self._variables(messages) | parts,
        }
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-m", jinja.__name__],
                input=json.dumps(order).encode(),
                capture_output=True,
                timeout=_PATIENCE,
                check=True,
            )
            answer = json.loads(done.stdout)
        except (subprocess.SubprocessError, ValueError):
            answer = {"broken": "it takes too much memory or time"}
        if "text" in answer:
            return answer["text"]
        if "complaint" in answer:
            raise PronkError(
                Code.INVALID_REQUEST, f"template: it refuses this: {answer['complaint']}"
            )
        raise PronkError(Code.INVALID_REQUEST, f"template: {answer['broken']}")


def _limit(messages: Sequence[ChatMessage]) -> int:
    return _OUTPUT + 8 * sum(len(message.content) for message in messages)
