"""What is asked for when text is asked for, in no dialect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...protocol.messages.generation import (
    ChatMessage,
    Constraint,
    Kind,
    SamplingOptions,
    Think,
    ToolChoice,
)
from .offload import NO_WISH, Offload


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request for text, as every dialect understands it. See `GenerateBody` for the fields."""

    model: str
    kind: Kind
    options: SamplingOptions
    messages: tuple[ChatMessage, ...] = ()
    prompt: str = ""
    system: str | None = None
    suffix: str = ""
    template: str | None = None
    raw: bool = False
    truncate: bool = True
    shift: bool = True
    constraint: Constraint | None = None
    context: tuple[int, ...] = ()
    return_context: bool = False
    logprobs: int | None = None
    seed: int | None = None
    """Negative for a random one, None for the model's own, or a random one where it has none."""
    context_length: int | None = None
    offload: Offload = NO_WISH
    keep_alive: float | None = None
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: ToolChoice = ToolChoice.AUTO
    tool: str = ""
    think: Think = None
    reasoning_budget: int | None = None
    images: tuple[bytes, ...] = ()
    needs: tuple[str, ...] = ()
    """Capabilities that the model must have beside completion, in Ollama's words."""
