"""A model's vocabulary: between text and token ids.

llama.cpp never changes a vocabulary after loading, and nothing here is kept between two calls but
what any thread would find again: every method may run in several threads at once, beside a decode.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import llama_cpp
import numpy as np

from ...protocol.errors import Code, PronkError
from ..conversation.infill import Infill
from ..conversation.specials import Special, cut_apart
from .segments import PORTION, portions, survivable

_c: Any = llama_cpp  # its stubs describe what ctypes takes only in part

_TOO_MANY = -(2**31)
"""What llama.cpp answers where the number of tokens overflows."""
_USUAL_PIECE = 256
_SPACE = "\u2581"
_CONTROL = int(_c.LLAMA_TOKEN_ATTR_CONTROL)
_STRIPS = int(_c.LLAMA_TOKEN_ATTR_LSTRIP)
_STRIPS_AFTER = int(_c.LLAMA_TOKEN_ATTR_RSTRIP)
_HIDDEN = _CONTROL | int(_c.LLAMA_TOKEN_ATTR_UNKNOWN)
"""What llama.cpp looks for only where control tokens count."""
_SPECIAL = _HIDDEN | int(_c.LLAMA_TOKEN_ATTR_USER_DEFINED)


_AT_ONCE = 4096
"""Tokens whose attributes are asked for without letting others have Python's lock."""

# Twice as fast as llama_cpp's own, which gives the lock away and takes it back for every token.
_attribute_of = ctypes.PyDLL(
    _c.llama_cpp._lib._name, handle=_c.llama_cpp._lib._handle
).llama_vocab_get_attr


class Vocabulary:
    """Between text and token ids. Lives as long as its model."""

    def __init__(self, handle: Any) -> None:
        """`handle` is llama.cpp's vocabulary of a loaded model."""
        self.handle = handle
        self.size = int(_c.llama_vocab_n_tokens(handle))
        self.bos = self._known(_c.llama_vocab_bos)
        """The token that begins a text, if the model has one."""
        self.adds_bos = self.bos is not None and bool(_c.llama_vocab_get_add_bos(handle))
        """Whether the model expects `bos` at the beginning of every prompt."""
        self._eos = self._known(_c.llama_vocab_eos)
        self.separators = self._find_separators()
        """What stands between the texts of a pair, as llama.cpp puts them together."""
        self.infill = self._find_infill()
        """None for a model that was not taught to fill in."""
        self._by_expression = _c.llama_vocab_type(handle) == _c.LLAMA_VOCAB_TYPE_BPE
        self._control: tuple[re.Pattern[bytes] | None] | None = None
        self._specials: tuple[Special, ...] | None = None
        self._hidden_tokens: frozenset[int] | None = None
        self._end_tokens: tuple[int, ...] | None = None
        self._pieces: dict[int, bytes] = {}
        self._written: dict[int, bytes] = {}
        self._longest_piece = 0

    def tokenize(self, text: str, *, special: bool = True, framed: bool = False) -> list[int]:
        """Token ids of `text`.

        With `special`, control tokens that are written in it count as such; without it, there are
        none. `framed` with the beginning and end tokens that the vocabulary adds to a text.
        """
        tokens = self._tokens(text.encode("utf-8", "replace"), special, framed)
        if framed or self._hidden.isdisjoint(tokens):
            return tokens
        found = map(self._control_text, self._hidden.intersection(tokens))
        merged = [each for each in found if not (special and each in text)]
        return self._spelled(text, merged, tokens, special) if merged else tokens

    def _spelled(self, text: str, merged: list[str], tokens: list[int], special: bool) -> list[int]:
        """The tokens of a text, without those whose texts were `merged`.

        Where words of the vocabulary lie on the way to a control token's text, llama.cpp merges
        letters into that token, although it is not written as a control token.
        """
        # A space and `_SPACE` are the same to a vocabulary of SentencePiece.
        texts = (re.escape(each.replace(_SPACE, " ")) for each in merged if len(each) > 1)
        pattern = "|".join(each.replace("\\ ", f"[ {_SPACE}]") for each in texts)
        cuts = [match.start() + 1 for match in re.finditer(pattern, text)] if pattern else []
        if not cuts:
            return tokens
        return cut_apart(text, cuts, lambda part: self.tokenize(part, special=special))

    @property
    def _hidden(self) -> frozenset[int]:
        """The tokens that no text has."""
        if self._hidden_tokens is None:
            hidden = (special.token for special in self.specials if special.control)
            self._hidden_tokens = frozenset(hidden)
        return self._hidden_tokens

    def _tokens(self, data: bytes, special: bool, framed: bool) -> list[int]:
        if not self._by_expression and len(data) <= PORTION:
            return self._tokenize(data, special, framed)
        tokens: list[int] = []
        for portion in self._portions(data):
            for part in survivable(portion) if self._by_expression else [portion]:
                tokens += self._tokenize(part, special, False)
        if framed:
            frame = self._tokenize(b"", special, True)
            begins = self.adds_bos and frame[:1] == [self.bos]
            tokens = [*frame[:1], *tokens, *frame[1:]] if begins else [*tokens, *frame]
        return tokens

    def _portions(self, data: bytes) -> list[bytes]:
        if len(data) <= PORTION:
            return [data]
        if self._control is None:
            self._control = self._find_control()
        return portions(data, self._control[0], lines=self._by_expression)

    def _find_control(self) -> tuple[re.Pattern[bytes] | None]:
        """What the texts of control tokens have in common, in a tuple for that it was looked for.

        One that takes the white space before it along is no place to cut.
        """
        attributes = self._attributes() & (_CONTROL | _STRIPS)
        texts = [
            self._render(token, special=True)
            for token in np.flatnonzero(attributes == _CONTROL).tolist()
        ]
        return (re.compile(b"|".join(map(re.escape, filter(None, texts)))) if any(texts) else None,)

    def _tokenize(self, data: bytes, special: bool, framed: bool) -> list[int]:
        room = len(data) + 8
        while True:
            tokens = np.empty(room, np.int32)
            count = _c.llama_tokenize(
                self.handle,
                data,
                len(data),
                tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
                room,
                framed,
                special,
            )
            if count >= 0:
                return tokens[:count].tolist()
            if count == _TOO_MANY:
                raise PronkError(Code.TOO_LARGE, "the prompt is too long; shorten it")
            room = -count

    def piece(self, token: int) -> bytes:
        """The bytes that `token` adds to a text; none for control tokens."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._render(token, special=False)
        return piece

    def written(self, token: int) -> bytes:
        """How `token` is written, control tokens too."""
        written = self._written.get(token)
        if written is None:
            written = self._written[token] = self._render(token, special=True)
        return written

    def ends_generation(self, token: int) -> bool:
        """Whether the model ends its answer by this token."""
        return _c.llama_vocab_is_eog(self.handle, token)

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Every token by which the model ends its answer."""
        if self._end_tokens is None:
            self._end_tokens = tuple(filter(self.ends_generation, range(self.size)))
        return self._end_tokens

    @property
    def specials(self) -> tuple[Special, ...]:
        """The tokens that stand for themselves and not for their texts."""
        if self._specials is None:
            self._specials = tuple(self._find_specials())
        return self._specials

    def _find_specials(self) -> Iterator[Special]:
        attributes = self._attributes()
        for token in np.flatnonzero(attributes & _SPECIAL).tolist():
            attribute = int(attributes[token])
            yield Special(
                token,
                _c.llama_vocab_get_text(self.handle, token).decode("utf-8", "replace"),
                bool(attribute & _HIDDEN),
                bool(attribute & _STRIPS),
                bool(attribute & _STRIPS_AFTER),
            )

    def _attributes(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Those of every token. Takes 25 ms for 152,000, and a model is not ready before."""
        attributes = np.empty(self.size, np.int32)
        handle = ctypes.c_void_p(self.handle)
        for start in range(0, self.size, _AT_ONCE):
            part = range(start, min(start + _AT_ONCE, self.size))
            told = map(_attribute_of, repeat(handle), part)
            attributes[part.start : part.stop] = np.fromiter(told, np.int32, len(part))
        return attributes

    @property
    def bos_text(self) -> str:
        """How templates write the beginning token; empty where there is none."""
        return self._control_text(self.bos)

    @property
    def eos_text(self) -> str:
        """How templates write the end token; empty where there is none."""
        return self._control_text(self._eos)

    @property
    def longest_piece(self) -> int:
        """Bytes of the longest token: how much text a context can hold at the very most."""
        if not self._longest_piece:
            measure, handle = _c.llama_token_to_piece, self.handle
            # Without room for a piece, the answer is its length with a minus before it.
            lengths = (measure(handle, token, None, 0, 0, True) for token in range(self.size))
            self._longest_piece = -min(lengths)
        return self._longest_piece

    def _known(self, which: Any) -> int | None:
        """The token that `which` finds, if it is one of this vocabulary."""
        token = int(which(self.handle))
        return token if 0 <= token < self.size else None

    def _find_separators(self) -> list[int]:
        separator = self._known(_c.llama_vocab_sep)
        end = separator if self._eos is None else self._eos
        adding = ((end, _c.llama_vocab_get_add_eos), (separator, _c.llama_vocab_get_add_sep))
        return [token for token, adds in adding if token is not None and adds(self.handle)]

    def _find_infill(self) -> Infill | None:
        prefix = self._known(_c.llama_vocab_fim_pre)
        suffix = self._known(_c.llama_vocab_fim_suf)
        middle = self._known(_c.llama_vocab_fim_mid)
        if prefix is None or suffix is None or middle is None:
            return None
        return Infill(prefix, suffix, middle)

    def _control_text(self, token: int | None) -> str:
        if token is None:
            return ""
        return self._render(token, special=True).decode("utf-8", "replace")

    def _render(self, token: int, *, special: bool) -> bytes:
        room = _USUAL_PIECE
        while True:
            buffer = ctypes.create_string_buffer(room)
            count = _c.llama_token_to_piece(self.handle, token, buffer, room, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            room = -count
