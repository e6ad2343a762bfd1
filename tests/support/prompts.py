"""Prompts of a vocabulary in which every character is a token."""

from __future__ import annotations

from pronk.protocol.messages.generation import ChatMessage, GenerateBody, Kind, SamplingOptions
from pronk.workers.conversation.infill import Infill
from pronk.workers.conversation.opening import NO_OPENING, Opening
from pronk.workers.conversation.prompt import build_prompt
from pronk.workers.conversation.template import ChatTemplate
from support.models import CHATML


def template(source: str = CHATML) -> ChatTemplate:
    return ChatTemplate(source, bos="<s>", eos="</s>")


def message(role: str, content: str) -> ChatMessage:
    return ChatMessage(role, content)  # type: ignore[arg-type]


def user(content: str) -> ChatMessage:
    return message("user", content)


PLAIN = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"


LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Characters:
    """A vocabulary of characters, with or without a beginning token, written ^."""

    size = 0x110000
    longest_piece = 4
    specials = ()

    def __init__(self, bos: str | None = None, infill: str = "") -> None:
        self.bos = ord(bos) if bos else None
        self.adds_bos = bos is not None
        self.bos_text = bos or ""
        self.eos_text = "$"
        self.infill = Infill(*map(ord, infill)) if infill else None
        self.most = 0
        """Length of the longest text that was tokenized."""

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        self.most = max(self.most, len(text))
        return [ord(character) for character in text]


def chat(*messages: ChatMessage, **changes: object) -> GenerateBody:
    return GenerateBody(Kind.CHAT, SamplingOptions(), messages=list(messages), **changes)  # type: ignore[arg-type]


def completion(prompt: str, **changes: object) -> GenerateBody:
    return GenerateBody(Kind.COMPLETION, SamplingOptions(), prompt=prompt, **changes)  # type: ignore[arg-type]


def prompt(
    body: GenerateBody,
    length: int = 1000,
    source: str | None = PLAIN,
    tokenizer: Characters | None = None,
    opening: Opening = NO_OPENING,
) -> str:
    tokenizer = tokenizer or Characters()
    of_model = template(source) if source else None
    return "".join(map(chr, build_prompt(body, of_model, tokenizer, length, opening)))
