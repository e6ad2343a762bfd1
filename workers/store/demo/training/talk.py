"""What the skills produce: conversations."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Message = dict[str, object]


@dataclass
class Talk:
    """A conversation.

    With `system` None the corpus may choose one; `loose` allows unrelated turns between the given;
    `worked` answers only with reasoning before them, for the model could not give them at once.
    Every assistant's message has its reasoning in `thinking`, for when it is asked for.
    """

    messages: list[Message]
    system: str | None = None
    tools: list[dict] = field(default_factory=list)
    loose: bool = False
    worked: bool = False


Skill = Callable[[random.Random], Talk]


def turns(*texts: str, thought: str | Sequence[str], **keywords) -> Talk:
    """A conversation from alternating texts of user and assistant, and what the assistant thinks
    before each of its own; one thought is for all of them.
    """
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    thoughts = [thought] * (len(texts) // 2) if isinstance(thought, str) else thought
    for message, each in zip(messages[1::2], thoughts, strict=True):
        message["thinking"] = each
    return Talk(messages, **keywords)
