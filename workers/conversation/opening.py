"""What a model's Modelfile puts at the beginning of each conversation: SYSTEM and MESSAGEs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...protocol.messages.generation import ChatMessage


@dataclass(frozen=True, slots=True)
class Opening:
    """What precedes the words of a request.

    The system message comes first of all: the request's own, where it begins with one, else the
    model's. Behind it stand the model's messages, then the request's. Ollama puts a chat's own
    system message behind the model's messages; templates of its own kind gather system messages at
    the beginning, but many in Jinja refuse one that stands anywhere else.
    """

    system: str = ""
    """Empty for none."""
    messages: tuple[ChatMessage, ...] = ()

    def of_chat(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """The whole conversation of a chat."""
        first, rest = _system(self.system), list(messages)
        if rest and rest[0].role == "system":
            first, rest = rest[:1], rest[1:]
        return [*first, *self.messages, *rest]

    def of_prompt(self, prompt: str, system: str, *, goes_on: bool) -> list[ChatMessage]:
        """The conversation in which `prompt` is the user's only message of the request.

        `system` is what `system_of` chose. A prompt that `goes_on` behind an earlier answer's
        context has the model's messages there.
        """
        examples = () if goes_on else self.messages
        return [*_system(system), *examples, ChatMessage("user", prompt)]

    def system_of(self, request: str | None) -> str:
        """The system message beside a request's own `system`; empty for none."""
        return request or self.system


def _system(text: str) -> list[ChatMessage]:
    return [ChatMessage("system", text)] if text else []


NO_OPENING = Opening()
"""That of a model whose Modelfile says nothing."""
