"""An answer that is more than text: thinking, text and calls, told apart token by token.

Stop texts are looked for in all that the model writes, thinking and calls included, as in Ollama:
they come before the parser, which takes a stop text for the end.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from ...protocol.messages.generation import Chunk, PositionLogprobs
from ..conversation.formats.said import Content, Said
from .answer import Answer, Pieces
from .detokenizer import Detokenizer
from .reading import Parser, Reading, beyond, parcels
from .sequence import Key
from .stop import StopMatcher

_log = logging.getLogger(__name__)


class WrittenPieces(Pieces, Protocol):
    """What such an answer must know of a vocabulary."""

    def written(self, token: int) -> bytes:
        """How `token` is written, control tokens too."""
        ...


class ParsedAnswer(Answer):
    """Turns tokens into what is said.

    Like the text of an `Answer`, it is a function of the tokens: of what an earlier attempt said,
    its first `released` units are left out, each character and each call counting as one.
    """

    def __init__(
        self,
        vocabulary: WrittenPieces,
        parser: Parser,
        reading: Reading,
        *,
        limit: int,
        stops: StopMatcher,
        before: Sequence[int] = (),
        released: int = 0,
        logprobs: bool = False,
    ) -> None:
        """`logprobs` says whether it is to be told which tokens have been read."""
        heard = _Heard(vocabulary, reading)
        self._parser: Parser | None = parser
        self._progress = _Progress(heard) if logprobs else None
        self._pending: list[Said] = []
        super().__init__(heard, limit=limit, stops=stops, before=before, released=released)

    def accept(self, token: int) -> str:
        """Appends a token; returns the text that the parser is to have because of it."""
        text = super().accept(token)
        if self._progress:
            self._progress.add(token, len(text))
        return text

    def hear(self, token: int) -> list[Said]:
        """Appends a token; returns what is said because of it."""
        text = self.accept(token)
        said = self._parsed(text)
        if self.reason and self._parser:
            said += self._parsed("", end=True)
        return said

    def chunks(
        self, key: Key, token: int, logprobs: list[PositionLogprobs] | None = None
    ) -> list[Chunk]:
        """Appends a token; returns what its reader is sent because of it."""
        index = len(self.tokens)
        said = self.hear(token)
        if logprobs and not logprobs[0].chosen.piece:
            # A marker's token: as in Ollama it is told how it is written.
            chosen = replace(logprobs[0].chosen, piece=self._vocabulary.piece(token))
            logprobs = [replace(logprobs[0], chosen=chosen)]
        return self._packed(key, index, [token], said, logprobs)

    def pending_chunks(self, key: Key) -> list[Chunk]:
        """What to send before the next token comes."""
        if not self._pending:
            return []
        logprobs = [] if self._progress else None
        return self._packed(key, len(self.tokens), [], self._pending, logprobs)

    def _replay(self, before: Sequence[int], released: int) -> None:
        said = [each for token in before for each in self.hear(token)]
        self._pending = beyond(said, released)

    def _parsed(self, text: str, *, end: bool = False) -> list[Said]:
        """What the parser makes of the text. Where it fails, text is text from then on."""
        if self._parser:
            try:
                if end:
                    return self._parser.finish()
                return self._parser.push(text) if text else []
            except Exception:
                _log.exception("an answer cannot be parsed any further")
                self._parser = None
        return [Content(text)] if text else []

    def _packed(
        self,
        key: Key,
        index: int,
        tokens: list[int],
        said: list[Said],
        logprobs: list[PositionLogprobs] | None,
    ) -> list[Chunk]:
        told = None
        if self._progress:
            ended = self.reason is not None and not self._stops.matched
            told = len(self.tokens) if ended else self._progress.read
        first, *rest = parcels(said)
        chunks = [
            Chunk(*key, index, tokens, first.text, logprobs, first.thinking, first.calls, told)
        ]
        behind = index + len(tokens)
        chunks += [
            Chunk(*key, behind, [], each.text, None, each.thinking, each.calls) for each in rest
        ]
        return chunks


class _Heard:
    """A vocabulary in which control tokens that a parser must see add their text to an answer."""

    def __init__(self, vocabulary: WrittenPieces, reading: Reading) -> None:
        self._vocabulary = vocabulary
        self._reading = reading

    def piece(self, token: int) -> bytes:
        if piece := self._vocabulary.piece(token):
            return piece
        written = self._vocabulary.written(token)
        return written if self._reading.hears(written.decode("utf-8", "replace")) else b""

    def ends_generation(self, token: int) -> bool:
        return self._vocabulary.ends_generation(token)


class _Progress:
    """How many tokens have been read: those whose first character is no part of what is held back
    for a stop text.
    """

    def __init__(self, vocabulary: Pieces) -> None:
        self._vocabulary = vocabulary
        self._detokenizer = Detokenizer()
        self._begins: deque[int] = deque()
        """Where the tokens that have not been read begin."""
        self._written = 0
        self._shown = 0
        self.read = 0

    def add(self, token: int, shown: int) -> None:
        """A token came, and with it so many characters of text."""
        self._begins.append(self._written)
        if not self._vocabulary.ends_generation(token):
            self._written += len(self._detokenizer.push(self._vocabulary.piece(token)))
        self._shown += shown
        while self._begins and self._begins[0] < self._shown:
            self._begins.popleft()
            self.read += 1
