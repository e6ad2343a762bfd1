"""Messages with all that a template may say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # the program that tries templates starts quickly without it
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
    if isinstance(message, Turn):
        return message
    calls: Sequence[Any] = getattr(message, "tool_calls", ())
    return Turn(
        message.role,
        message.content,
        getattr(message, "thinking", ""),
        [_call_of(call) for call in calls],
        getattr(message, "tool_name", ""),
        getattr(message, "tool_call_id", ""),
    )


def _call_of(call: Any) -> Mapping[str, Any]:
    if isinstance(call, Mapping):
        return cast(Mapping[str, Any], call)
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "function": function} if call.id else {"function": function}
