"""Messages with all that a template may say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...protocol.messages.generation import ChatMessage, ToolCall


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation, in the words of Ollama's API."""

    role: str
    content: str
    thinking: str = ""
    tool_calls: Sequence[Mapping[str, Any]] = ()
    """As in JSON: `{"type": "function", "function": {"name": …, "arguments": {…}, "index": 0}}`,
    perhaps with an `id`."""
    tool_name: str = ""
    """The tool whose result this is."""
    tool_call_id: str = ""


def turn_of(message: ChatMessage | Turn) -> Turn:
    """A message as a turn."""
    if isinstance(message, Turn):
        return message
    return Turn(
        message.role,
        message.content,
        message.thinking,
        [_call(call, index) for index, call in enumerate(message.tool_calls)],
        message.tool_name,
        message.tool_call_id,
    )


def _call(call: ToolCall, index: int) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments, "index": index}
    called: dict[str, Any] = {"type": "function", "function": function}
    return {"id": call.id, **called} if call.id else called
