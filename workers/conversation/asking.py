"""A model's template together with what one request says beside its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...protocol.messages.generation import ChatMessage, GenerateBody, ToolChoice
from .go_chat import Think
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

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        think: Think = None,
    ) -> str:
        """As `Template` says; what is not said here is what the request says."""
        wish = self._think if think is None else think
        return self._template.render(messages, tools=tools or self._tools, think=wish)

    def fill(self, prompt: str, suffix: str) -> str:
        """As `Template` says."""
        return self._template.fill(prompt, suffix)
