"""From a request's body to the tokens that the engine reads.

The rendered text is tokenized as a whole, control tokens included: a template cannot be written
otherwise. A user who writes `<|im_end|>` therefore writes that control token, as with llama.cpp's
and Ollama's servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...protocol.errors import Code, PronkError
from ...protocol.messages.generation import ChatMessage, GenerateBody, Kind
from .template import ChatTemplate


class Tokenizer(Protocol):
    """What prompts need of a vocabulary."""

    @property
    def size(self) -> int:
        """Tokens in the vocabulary."""
        ...

    @property
    def bos(self) -> int | None:
        """The token that begins a text, if there is one."""
        ...

    @property
    def adds_bos(self) -> bool:
        """Whether every prompt begins with `bos`."""
        ...

    @property
    def longest_piece(self) -> int:
        """Bytes of the longest token."""
        ...

    def tokenize(self, text: str) -> list[int]:
        """Token ids of `text`, without a beginning token."""
        ...


def build_prompt(
    body: GenerateBody, template: ChatTemplate | None, tokenizer: Tokenizer, context_length: int
) -> list[int]:
    """The prompt of a request: at least one token, at most `context_length - 1`.

    A chat that is too long loses its oldest messages when the request allows it. Raises
    `PronkError` when the prompt does not fit, is empty, or cannot be rendered.
    """
    for token in (*body.context, *body.tokens):
        if token >= tokenizer.size:
            raise PronkError(
                Code.INVALID_REQUEST,
                f"context: the model has no token {token}; send only what this model returned",
            )
    text = _PromptText(tokenizer, context_length, body.context)
    if body.kind is Kind.COMPLETION and body.raw:
        return text.fitting(body.prompt)
    if template is None:
        raise PronkError(
            Code.INVALID_REQUEST, "the model has no chat template; use /api/generate with raw"
        )
    if body.kind is Kind.COMPLETION:
        system = [ChatMessage("system", body.system)] if body.system else []
        return text.fitting(template.render([*system, ChatMessage("user", body.prompt)]))
    if not body.truncate:
        return text.fitting(template.render(body.messages))
    return _truncated(body.messages, template, text)


class _PromptText:
    """Tokenizes text into prompts of one request, and tells whether they fit."""

    def __init__(self, tokenizer: Tokenizer, context_length: int, before: list[int]) -> None:
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._before = before
        """Tokens that stand before the text."""

    def fitting(self, text: str) -> list[int]:
        """The prompt; raises `PronkError` when it is empty or leaves no room for an answer."""
        if self._hopeless(text):
            size = -(-len(text.encode("utf-8", "replace")) // self._tokenizer.longest_piece)
            raise self._too_long(f"at least {size}")
        tokens = self._tokens(text)
        if len(tokens) >= self._context_length:
            raise self._too_long(str(len(tokens)))
        if not tokens:
            raise PronkError(Code.INVALID_REQUEST, "the prompt is empty; send some text")
        return tokens

    def fits(self, text: str) -> bool:
        """Whether the prompt leaves room for an answer."""
        return not self._hopeless(text) and len(self._tokens(text)) < self._context_length

    def _tokens(self, text: str) -> list[int]:
        tokens = [*self._before, *self._tokenizer.tokenize(text)]
        bos = self._tokenizer.bos
        # A template may have written it already.
        if bos is not None and self._tokenizer.adds_bos and tokens[:1] != [bos]:
            tokens.insert(0, bos)
        return tokens

    def _hopeless(self, text: str) -> bool:
        """Whether the text is too long however it is tokenized, which itself takes time."""
        bytes_ = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        if bytes_ < 16 * self._context_length:  # worth a try, and it spares the next line's look-up
            return False
        return bytes_ > self._context_length * self._tokenizer.longest_piece

    def _too_long(self, count: str) -> PronkError:
        return PronkError(
            Code.INVALID_REQUEST,
            f"the prompt has {count} tokens, but the context holds {self._context_length}; "
            "shorten it or ask for a larger num_ctx",
        )


def _truncated(
    messages: Sequence[ChatMessage], template: ChatTemplate, text: _PromptText
) -> list[int]:
    """The prompt of the longest end of a conversation that fits, with all system messages.

    What is kept begins with a user's message, because many templates refuse anything else, or is
    the last message alone. Bisecting keeps a history of thousands of messages cheap.
    """
    whole = template.render(messages)
    if text.fits(whole) or len(messages) < 2:
        return text.fitting(whole)
    last = len(messages) - 1
    starts = [i for i in range(1, last) if messages[i].role == "user"] + [last]
    low, high = 0, len(starts) - 1  # the last one is tried whether it fits or not
    while low < high:
        middle = (low + high) // 2
        if text.fits(template.render(_from(messages, starts[middle]))):
            high = middle
        else:
            low = middle + 1
    return text.fitting(template.render(_from(messages, starts[low])))


def _from(messages: Sequence[ChatMessage], start: int) -> list[ChatMessage]:
    """The messages from `start` on, and every system message before it."""
    return [m for m in messages[:start] if m.role == "system"] + list(messages[start:])
