"""A model's template together with what one request says beside its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...protocol.messages.generation import ChatMessage, GenerateBody, ToolChoice
from .template import Template


class Asking:
    """Renders prompts of one request: with its tools, and with its wish that the model thinks.

    Where the model may not call any tool, it does not get to know of them.
    """

    def __init__(self, template: Template, body: GenerateBody) -> None:
        self._template = template
        self._tools: Sequence[Mapping[str, Any]] = body.tools
        if body.tool_choice is ToolChoice.NONE:
            self._tools = ()
        self._think = body.think

    @property
    def fills(self) -> bool:
        """As `Template` says."""
        return self._template.fills

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """As `Template` says."""
        return self._template.render(messages, tools=self._tools, think=self._think)

    def fill(self, prompt: str, suffix: str) -> str:
        """As `Template` says."""
        return self._template.fill(prompt, suffix)
