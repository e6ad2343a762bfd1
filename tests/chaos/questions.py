"""What is asked while processes die, with the one right answer to each.

Three models: the built-in one, the same weights under another name and digest, and one that recites
a text of any length, so that there is always a long stream to hit.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass, replace
from typing import Any

from pronk.workers.store import demo
from support.library import add_model
from support.models import write_reciting_model
from support.server import Server

CHAIN = string.ascii_lowercase + string.digits + string.ascii_uppercase
"""What the reciting model says, over and over."""

TOPICS = (
    "Why is the sky blue?",
    "What is a llama?",
    "Who are you?",
    "Tell me about the ocean.",
    "What is the capital of France?",
    "How does a bicycle stay upright?",
    "Write a short poem about rain.",
    "Why do leaves fall in autumn?",
)


@dataclass(frozen=True)
class Question:
    """A request, and what has to come of it."""

    path: str
    body: dict[str, Any]
    text: str = ""
    eval_count: int = 0
    prompt_eval_count: int = 0

    @property
    def model(self) -> str:
        """The model that it is for."""
        return self.body["model"]

    @property
    def streamed(self) -> bool:
        """Whether the answer comes in lines."""
        return self.body.get("stream", True)

    def whole(self) -> Question:
        """The same, to be answered in one piece."""
        return replace(self, body=self.body | {"stream": False})

    def answered(self, text: str, final: dict[str, Any]) -> Question:
        """The same, with an answer that is right because nothing disturbed it."""
        return replace(
            self,
            text=text,
            eval_count=final["eval_count"],
            prompt_eval_count=final["prompt_eval_count"],
        )


def add_models(server: Server) -> None:
    """Puts into the server's library what is not built in."""
    add_model(server.models, "twin", demo.WEIGHTS, {"num_ctx": 2048})
    weights = server.root / "reciter.gguf"
    write_reciting_model(weights, [CHAIN + CHAIN[0]], context=8192)
    add_model(server.models, "reciter", weights)


def unanswered(dice: random.Random) -> list[Question]:
    """Every question, for the models to answer once undisturbed."""
    chats = [
        Question(
            "/api/chat",
            {
                "model": model,
                "messages": [{"role": "user", "content": topic}],
                "options": {"temperature": 0},
            },
        )
        for model in ("demo", "twin")
        for topic in TOPICS
    ]
    recitals = [
        Question(
            "/api/generate",
            {
                "model": "reciter",
                "prompt": dice.choice(CHAIN),
                "raw": True,
                "options": {"temperature": 0, "num_predict": length, "num_ctx": 8192},
            },
        )
        for length in (300, 1500, 4000, 4000)
    ]
    return chats + recitals


def recited(question: Question) -> str:
    """What the reciting model has to say, by its making."""
    start = CHAIN.index(question.body["prompt"]) + 1
    length = question.body["options"]["num_predict"]
    return (CHAIN * (length // len(CHAIN) + 2))[start : start + length]
