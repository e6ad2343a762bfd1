"""From text to the tokens of one request's prompt, within the context.

What cannot fit however it is tokenized is never tokenized as a whole: that takes time by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...protocol.errors import Code, PronkError
from ...protocol.messages.generation import GenerateBody
from ..inference.rows import whole_before, whole_behind
from ..inference.shift import kept, prompt_limit
from .infill import Infill
from .specials import Rendered, Special

_USUAL_PIECE = 8
"""Bytes of a token, about: more than most languages have."""

_DISTURBED = 16
"""Tokens beside a cut through a text that may differ from those of the whole text."""


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
    def bos_text(self) -> str:
        """How templates write the beginning token; empty where there is none."""
        ...

    @property
    def eos_text(self) -> str:
        """How templates write the end token; empty where there is none."""
        ...

    @property
    def infill(self) -> Infill | None:
        """The tokens that mark a gap; None where the model was not taught to fill in."""
        ...

    @property
    def specials(self) -> Sequence[Special]:
        """The tokens that stand for themselves and not for their texts."""
        ...

    @property
    def longest_piece(self) -> int:
        """Bytes of the longest token."""
        ...

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of `text`, without a beginning token."""
        ...


class Fitting:
    """Tokenizes text into prompts of one request, and tells whether they fit.

    A prompt leaves room for at least one token of the answer. All methods that return one raise
    `PronkError` (INVALID_REQUEST) where there is none.
    """

    def __init__(self, tokenizer: Tokenizer, context_length: int, body: GenerateBody) -> None:
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._before = body.context
        self._num_keep = body.options.num_keep
        self._truncate = body.truncate

    def whole(self, text: str | Rendered) -> list[int]:
        """The prompt of all the text."""
        self._refuse_hopeless(text)
        return self._checked(self._begun(self._tokens(text)))

    def fits(self, text: str | Rendered, *, cut: bool = False) -> bool:
        """Whether the prompt leaves room for an answer: as much as one that was `cut` leaves."""
        if self._hopeless(text):
            return False
        length = len(self._begun(self._tokens(text)))
        if cut:
            return length <= prompt_limit(self._context_length, self._kept(length))
        return length < self._context_length

    def cut(self, text: str | Rendered) -> list[int]:
        """The prompt of all the text, or where it is too long and may be cut: its first `num_keep`
        tokens, and the last ones, as many as leave half of the rest to the answer.
        """
        if not self._truncate:
            return self.whole(text)
        if self._hopeless(text):
            longest = self._context_length + _DISTURBED
            tokens = [*self._first(text, longest), *self._last(text, longest)]
        else:
            tokens = self._tokens(text)
        tokens = self._begun(tokens)
        if len(tokens) < self._context_length:
            return self._checked(tokens)
        keep = self._kept(len(tokens))
        limit = prompt_limit(self._context_length, keep)
        if limit < 1:
            raise self._too_long(str(len(tokens)))
        start = whole_behind(tokens, len(tokens) - (limit - keep))
        return [*tokens[: whole_before(tokens, keep)], *tokens[start:]]

    def around(self, gap: Infill, prefix: str, suffix: str) -> list[int]:
        """The prompt that asks for what stands between two texts.

        Where it is too long and may be cut, both lose what is farthest from the gap, and the text
        before it keeps three quarters. Control tokens that are written in them are only text.
        """
        longest = self._context_length
        if self._truncate:
            before = self._last(prefix, longest, special=False)
            behind = self._first(suffix, longest, special=False)
        else:
            self._refuse_hopeless(prefix + suffix)
            before = self._tokens(prefix, special=False)
            behind = self._tokens(suffix, special=False)
        frame = len(self._begun(gap.around([], [])))
        length = frame + len(before) + len(behind)
        if length >= self._context_length:
            room = prompt_limit(self._context_length, self._kept(length)) - frame
            if not self._truncate or room < 1:
                raise self._too_long(str(length))
            behind = behind[: max(room // 4, room - len(before))]
            before = before[max(len(before) - (room - len(behind)), 0) :]
        return self._begun(gap.around(before, behind))

    def _tokens(self, text: str | Rendered, *, special: bool = True) -> list[int]:
        if isinstance(text, Rendered):
            return text.tokens(self._tokenizer, special=special)
        return self._tokenizer.tokenize(text, special=special)

    def _begun(self, tokens: Sequence[int]) -> list[int]:
        """The whole prompt: what stands before the text, and the beginning token once."""
        bos = self._tokenizer.bos
        prompt = [*self._before, *tokens]
        # A template may have written it already.
        if bos is not None and self._tokenizer.adds_bos and prompt[:1] != [bos]:
            prompt.insert(0, bos)
        return prompt

    def _checked(self, prompt: list[int]) -> list[int]:
        if len(prompt) >= self._context_length:
            raise self._too_long(str(len(prompt)))
        if not prompt:
            raise PronkError(Code.INVALID_REQUEST, "the prompt is empty; send some text")
        return prompt

    def _kept(self, length: int) -> int:
        adds_bos = self._tokenizer.adds_bos
        return kept(self._num_keep, length, self._context_length, adds_bos=adds_bos)

    def _first(self, text: str | Rendered, count: int, *, special: bool = True) -> list[int]:
        """The first `count` tokens of a text, or all, without reading much more of it."""
        room = _USUAL_PIECE * (count + _DISTURBED)
        while room < len(text):
            tokens = self._tokens(text[:room], special=special)
            if len(tokens) >= count + _DISTURBED:
                return tokens[:count]
            room *= 2
        return self._tokens(text, special=special)

    def _last(self, text: str | Rendered, count: int, *, special: bool = True) -> list[int]:
        """The last `count` tokens of a text, or all, without reading much more of it."""
        room = _USUAL_PIECE * (count + _DISTURBED)
        while room < len(text):
            tokens = self._tokens(text[-room:], special=special)
            if len(tokens) >= count + _DISTURBED:
                return tokens[-count:]
            room *= 2
        return self._tokens(text, special=special)

    def _hopeless(self, text: str | Rendered) -> bool:
        """Whether the text is too long however it is tokenized."""
        bytes_ = _bytes_of(text)
        if bytes_ < 16 * self._context_length:  # worth a try, and it spares the next line's look-up
            return False
        return bytes_ > self._context_length * self._tokenizer.longest_piece

    def _refuse_hopeless(self, text: str | Rendered) -> None:
        if self._hopeless(text):
            raise self._too_long(f"at least {-(-_bytes_of(text) // self._tokenizer.longest_piece)}")

    def _too_long(self, count: str) -> PronkError:
        return PronkError(
            Code.INVALID_REQUEST,
            f"the prompt has {count} tokens, but the context holds {self._context_length}; "
            "shorten it or ask for a larger num_ctx",
        )


def _bytes_of(text: str | Rendered) -> int:
    text = text.text if isinstance(text, Rendered) else text
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
