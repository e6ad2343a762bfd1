"""What the skills produce: conversations."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

Message = dict[str, object]


@dataclass
class Talk:
    """A conversation.

    With `system` None the corpus may choose one; `loose` allows unrelated turns between the given.
    """

    messages: list[Message]
    system: str | None = None
    tools: list[dict] = field(default_factory=list)
    loose: bool = False


Skill = Callable[[random.Random], Talk]


def turns(*texts: str, **keywords) -> Talk:
    """A conversation from alternating texts of user and assistant."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return Talk(messages, **keywords)
