"""Chat templates: Jinja or Go source from a model or from a request, so from anybody.

minijinja renders Jinja: no Python object is within its reach, and fuel bounds its steps. Fuel
does not bound memory: one line that doubles a text takes gigabytes within a few steps. A model's
own template is its owner's choice, and bounded only by the worker's life; one that comes with a
request is rendered in a process of its own, where memory and time end before the worker's do.
Go templates are bounded in all of this wherever they come from, and need no such process.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ...protocol.errors import Code, PronkError
from ...protocol.messages.generation import ChatMessage
from . import jinja
from .go_chat import GoChat, Think
from .gotemplate import GoTemplateError
from .gotemplate import Template as GoTemplate
from .jinja import Broken, Complaint, Renderer
from .turns import Turn

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


class Template(Protocol):
    """A model's template, in whatever language."""

    @property
    def fills(self) -> bool:
        """Whether it can ask for what stands between two texts."""
        ...

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        think: Think = None,
    ) -> str:
        """The prompt text of `messages`, up to where the assistant begins to speak.

        `tools` are as JSON has them; `think` is what the request says of thinking. Raises
        `PronkError`.
        """
        ...

    def fill(self, prompt: str, suffix: str) -> str:
        """The prompt text that asks for what stands between two texts, if it `fills`.

        Raises `PronkError`.
        """
        ...


class _Jinja:
    """What is the same for every Jinja template: what it is given, and how much it may take."""

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


class ChatTemplate(_Jinja):
    """A model's own Jinja template, rendered the way Hugging Face's `apply_chat_template` does.

    May be used by several threads at once.
    """

    fills = False

    def __init__(self, source: str, *, bos: str, eos: str) -> None:
        super().__init__(source, bos=bos, eos=eos)
        self._of_thread = threading.local()

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        think: Think = None,
    ) -> str:
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
            raise _failed(broken) from None

    def fill(self, prompt: str, suffix: str) -> str:
        """Nothing: no Jinja template of a model has a place for a suffix."""
        raise NotImplementedError


class GoChatTemplate:
    """A model's own Go template. May be used by several threads at once."""

    def __init__(self, template: GoTemplate) -> None:
        self._chat = GoChat(template)

    @property
    def fills(self) -> bool:
        """Whether it has a place for the text behind a gap."""
        return self._chat.fills

    def render(
        self,
        messages: Sequence[ChatMessage | Turn],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        think: Think = None,
    ) -> str:
        """The prompt text of `messages`. Raises `PronkError` (INTERNAL) where the template fails.

        `tools` are as JSON has them; `think` is what the request says of thinking.
        """
        try:
            return self._chat.render(messages, tools=tools, think=think)
        except GoTemplateError as error:
            raise _failed(error) from None

    def fill(self, prompt: str, suffix: str) -> str:
        """The prompt text around a gap. Raises `PronkError` (INTERNAL)."""
        try:
            return self._chat.fill(prompt, suffix)
        except GoTemplateError as error:
            raise _failed(error) from None


def _failed(reason: Exception) -> PronkError:
    _log.warning("the chat template failed: %s", reason)
    return PronkError(
        Code.INTERNAL,
        f"the model's chat template failed: {reason}; "
        "/api/generate with raw does without the template",
    )


class GoRequestTemplate:
    """A Go template that came with a request."""

    def __init__(self, template: GoTemplate) -> None:
        self._chat = GoChat(template)

    def render(self, messages: Sequence[ChatMessage], **parts: str) -> str:
        """The prompt text. Raises `PronkError` (INVALID_REQUEST) whatever goes wrong with it.

        As in Ollama, a request with a `suffix` has no messages, only its `prompt`.
        """
        try:
            if parts.get("suffix"):
                return self._chat.fill(parts["prompt"], parts["suffix"])
            return self._chat.render(messages)
        except GoTemplateError as error:
            raise PronkError(Code.INVALID_REQUEST, f"template: {error}") from None


class RequestTemplate(_Jinja):
    """A Jinja template that came with a request.

    Beside the messages it is given their parts by name.
    """

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
