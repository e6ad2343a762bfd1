"""From texts to the tokens whose vectors are wanted: beginning and end tokens, truncation, pairs.

Nothing here touches a context: it may run beside the engine's thread. Control tokens that a text
spells count as such, as in prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ...protocol.errors import Code, PronkError
from ...protocol.messages.embedding import EmbedBody

QUERY, DOCUMENT = "{query}", "{document}"
"""Where a model's own text for pairs, if it has one, has its blanks."""

_CHARACTERS_PER_TOKEN = 16
"""Of a text, tried first: nearly every text has more tokens than that gives."""


class Tokenizer(Protocol):
    """What this needs of a vocabulary."""

    @property
    def bos(self) -> int | None:
        """The token that begins a text."""
        ...

    @property
    def adds_bos(self) -> bool:
        """Whether every text begins with it."""
        ...

    @property
    def separators(self) -> list[int]:
        """What the model expects between the two texts of a pair."""
        ...

    def tokenize(self, text: str, *, framed: bool = False) -> list[int]:
        """Token ids of `text`; `framed` with the beginning and end tokens of the vocabulary."""
        ...


@dataclass(frozen=True, slots=True)
class EmbedInputs:
    """One request, ready to be computed."""

    tokens: list[list[int]]
    """Of each text, or of each pair; never empty."""
    scores: bool
    """Whether a score is wanted of each, and no vector."""
    normalize: bool
    dimensions: int
    """Numbers of a vector that are wanted; 0 for all."""

    @property
    def count(self) -> int:
        """Tokens of all texts together."""
        return sum(map(len, self.tokens))


class InputPreparer:
    """Prepares requests for one model."""

    def __init__(
        self, tokenizer: Tokenizer, *, ranks: bool, context_length: int, pair_template: str | None
    ) -> None:
        """`ranks`: the model scores pairs, and does nothing else. `pair_template` is its text for
        them, with `QUERY` and `DOCUMENT` in it.
        """
        self._tokenizer = tokenizer
        self._ranks = ranks
        self._context_length = context_length
        self._pair_template = pair_template
        frame = tokenizer.tokenize("", framed=True)
        begins = bool(frame) and tokenizer.tokenize("a", framed=True)[0] == frame[0]
        self._end = frame[1:] if begins else frame
        """The tokens that end every text, and every pair."""

    def prepare(self, body: EmbedBody, context_length: int | None) -> EmbedInputs:
        """The tokens of a request; `context_length` is what it asks for, if anything.

        Raises `PronkError`: the model cannot do this, or an input is empty or too long.
        """
        if body.query is not None and not self._ranks:
            raise PronkError(
                Code.INVALID_REQUEST,
                "the model cannot rank documents: it has no classification head; use a reranker",
            )
        if body.query is None and self._ranks:
            raise PronkError(
                Code.INVALID_REQUEST,
                "the model ranks documents and has no vectors; use it with /api/rerank",
            )
        if not body.inputs:
            raise PronkError(Code.INVALID_REQUEST, "there is no input; send some text")
        limit = min(self._context_length, context_length or self._context_length)
        tokens: list[list[int]] = []
        for position, text in enumerate(body.inputs, start=body.first):
            name = f"input[{position}]" if body.query is None else f"documents[{position}]"
            if body.query is None:
                tokens.append(self._text(text, limit, body.truncate, name))
            else:
                tokens.append(self._pair(body.query, text, limit, body.truncate, name))
        return EmbedInputs(
            tokens,
            scores=body.query is not None,
            normalize=body.normalize,
            dimensions=body.dimensions or 0,
        )

    def _text(self, text: str, limit: int, truncate: bool, name: str) -> list[int]:
        tokens = self._beginning(text, limit, framed=True)
        if not tokens:
            raise PronkError(Code.INVALID_REQUEST, f"{name} is empty; send some text")
        if len(tokens) <= limit:
            return tokens
        room = limit - len(self._end)
        if not truncate or room < 1:
            raise _too_long(name, len(tokens), limit, can_be_cut=room >= 1)
        return tokens[:room] + self._end

    def _pair(self, query: str, document: str, limit: int, truncate: bool, name: str) -> list[int]:
        before, after = self._around_document(query, limit)
        tokens = self._beginning(document, limit)
        room = limit - len(before) - len(after)
        if room < 1:
            raise _too_long("query", len(before) + len(after), limit, can_be_cut=False)
        if len(tokens) > room and not truncate:
            raise _too_long(name, len(before) + len(tokens) + len(after), limit, can_be_cut=True)
        return before + tokens[:room] + after

    def _around_document(self, query: str, limit: int) -> tuple[list[int], list[int]]:
        """The tokens before and behind the document of a pair."""
        tokenizer = self._tokenizer
        if self._pair_template:
            before, _, after = self._pair_template.partition(DOCUMENT)
            return (
                self._beginning(before.replace(QUERY, query), limit),
                tokenizer.tokenize(after.replace(QUERY, query)),
            )
        begin = [tokenizer.bos] if tokenizer.adds_bos and tokenizer.bos is not None else []
        return begin + self._beginning(query, limit) + tokenizer.separators, self._end

    def _beginning(self, text: str, limit: int, *, framed: bool = False) -> list[int]:
        """A text's tokens, or more than twice `limit` of them: nobody reads the rest of a book."""
        size = _CHARACTERS_PER_TOKEN * limit
        while True:
            tokens = self._tokenizer.tokenize(text[:size], framed=framed)
            if size >= len(text) or len(tokens) > 2 * limit:
                return tokens
            size *= 4


def _too_long(name: str, count: int, limit: int, *, can_be_cut: bool) -> PronkError:
    advice = (
        "shorten it, or let it be cut (truncate)" if can_be_cut else "shorten it, or raise num_ctx"
    )
    return PronkError(
        Code.INVALID_REQUEST,
        f"{name} has {count} tokens or more, but the context holds {limit}; {advice}",
    )
