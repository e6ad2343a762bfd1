"""Messages with all that a template may say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...protocol.messages.generation import ChatMessage


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation, in the words of Ollama's API."""

    role: str
    content: str
    thinking: str = ""
    tool_calls: Sequence[Mapping[str, Any]] = ()
    """As in JSON: `{"function": {"name": …, "arguments": {…}}}`, perhaps with an `id`."""
    tool_name: str = ""
    """The tool whose result this is."""
    tool_call_id: str = ""


def turn_of(message: ChatMessage | Turn) -> Turn:
    """A message as a turn."""
    return message if isinstance(message, Turn) else Turn(message.role, message.content)
