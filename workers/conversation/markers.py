"""Where images stand in a prompt.

llama.cpp writes itself what a model wants around an image, so no template has to know of images:
each is a marker in a message's text, which the tokenizer finds again in what the template made of
it. A marker cannot be guessed, so that nobody can write one.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from ...protocol.messages.generation import ChatMessage, GenerateBody
from .fitting import Tokenizer

_PLACE = re.compile(r"\[img(?:-(\d{1,9}))?\]")
"""Ollama's word for where an image of the message stands, or the one of that number."""


class Markers:
    """The images of one request, by the texts that stand for them."""

    def __init__(self) -> None:
        # Letters and digits: no template escapes them, and no control token begins with them.
        self._word = f"image{secrets.token_hex(16)}n"
        self.images: dict[str, bytes] = {}

    def with_markers(self, body: GenerateBody) -> GenerateBody:
        """The same request with a marker for each image, and no images."""
        messages = [self._message(message) for message in body.messages]
        prompt = self._placed(body.prompt, body.images)
        return replace(body, messages=messages, prompt=prompt, images=[])

    def split(self, text: str) -> list[str]:
        """A text in parts, of which every second one is a marker."""
        return re.split(f"({self._word}[0-9]+e)", text) if self.images else [text]

    @property
    def longest(self) -> int:
        """Characters of the longest marker."""
        return max(map(len, self.images), default=0)

    def _message(self, message: ChatMessage) -> ChatMessage:
        if not message.images:
            return message
        content = self._placed(message.content, message.images)
        return replace(message, content=content, images=[])

    def _placed(self, text: str, images: Sequence[bytes]) -> str:
        """A text with its images where it wants them, and the others before it, as in Ollama."""
        if not images:
            return text
        markers = [self._marker(image) for image in images]
        left = dict(enumerate(markers))

        def place(match: re.Match[str]) -> str:
            number = int(match[1]) if match[1] else next(iter(left), None)
            if number is None or number not in left:
                return match[0]
            return left.pop(number)

        text = _PLACE.sub(place, text)
        return "".join(left.values()) + text

    def _marker(self, image: bytes) -> str:
        marker = f"{self._word}{len(self.images)}e"
        self.images[marker] = image
        return marker


class SeeingTokenizer:
    """A tokenizer that puts the numbers of images where their markers stand."""

    def __init__(
        self, tokenizer: Tokenizer, markers: Markers, numbers: Mapping[str, Sequence[int]]
    ) -> None:
        """`numbers` are what stands in a prompt for the image of each marker."""
        self._tokenizer = tokenizer
        self._markers = markers
        self._numbers = numbers

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, markers: Markers, numbers: Mapping[str, Sequence[int]]
    ) -> Tokenizer:
        """One that is otherwise like `tokenizer`."""
        return cast(Tokenizer, cls(tokenizer, markers, numbers)) if numbers else tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    @property
    def longest_piece(self) -> int:
        """Bytes of the longest token; a marker, however long, may stand for a single one."""
        return max(self._tokenizer.longest_piece, self._markers.longest)

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """The numbers of `text`: those of tokens, and of images where there are markers."""
        numbers: list[int] = []
        for place, part in enumerate(self._markers.split(text)):
            if place % 2:
                numbers += self._numbers[part]
            elif part:
                numbers += self._tokenizer.tokenize(part, special=special)
        return numbers
