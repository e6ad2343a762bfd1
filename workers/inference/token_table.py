"""A model's vocabulary as constraints see it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

if TYPE_CHECKING:  # a blank worker imports this, and takes hold of no device
    from .vocabulary import Vocabulary

_BOUNDS = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"),
    np.float32(np.inf),
    np.float32(-np.inf),
)
"""For each byte of a mask the upper bounds of eight logits."""


class TokenTable:
    """Which tokens write which bytes, and which end an answer. Made once for each model.

    A control token other than those that end an answer has no place in one, whatever a grammar
    says. Nor has a token that the model's makers added in the shape `<…>`: it is a signal, such as
    the beginning of a thought, and not text.
    """

    def __init__(self, vocabulary: Vocabulary, markers: Sequence[bytes] = ()) -> None:
        """Reads the whole vocabulary. Safe beside a computation on the same model.

        A signal that is written in one of `markers` is text like any other; what ends an answer
        never is.
        """
        import llama_cpp

        library: Any = llama_cpp.llama_cpp._lib
        self.size = vocabulary.size
        tokens, ends, signals = _read(vocabulary, markers)
        self.tokens = [token if token[:1] != _SPECIAL else b"" for token in tokens]
        """The text of each token; empty for those that have no place in a text."""
        self.ends = ends
        """Tokens that end an answer."""
        self.tokenizer: LLTokenizer = LLTokenizer.from_llamacpp(  # pyright: ignore
            tokens=tokens,
            vocab_ptr=vocabulary.handle,
            tokenize_fptr=ctypes.cast(library.llama_tokenize, ctypes.c_void_p).value,
            eos_token=ends or None,
        )
        usable = np.array([token[:1] != _SPECIAL for token in tokens])
        usable[ends] = True
        self.usable = self._mask_of(usable)
        self.signals = self._mask_of(np.isin(np.arange(self.size), signals)) if signals else None
        """Signals that are text here; None where there are none."""
        blank = [bool(token) and not token.strip(SPACE) for token in self.tokens]
        self.spaces = self._mask_of(np.array(blank))
        """Tokens that are nothing but white space."""
        ending = np.zeros(self.size, np.bool_)
        ending[ends] = True
        self.ending = self._mask_of(ending)
        self._bounds = np.empty((len(self.usable), 8), np.float32)
        self._containing: dict[int, list[tuple[int, list[int]]]] = {}
        self._by_byte: dict[int, int] = {}
        for token, text in enumerate(self.tokens):
            if len(text) == 1:
                self._by_byte.setdefault(text[0], token)

    def containing(self, byte: int) -> list[tuple[int, list[int]]]:
        """Every token whose text has a byte, with the places behind that byte. Found once."""
        found = self._containing.get(byte)
        if found is None:
            found = self._containing[byte] = [
                (token, [at + 1 for at, each in enumerate(text) if each == byte])
                for token, text in enumerate(self.tokens)
                if byte in text
            ]
        return found

    def spell(self, text: bytes) -> list[int] | None:
        """A text in tokens of one byte each; None where the vocabulary lacks one of them."""
        tokens = [self._by_byte.get(byte) for byte in text]
        return None if None in tokens else [token for token in tokens if token is not None]

    def _mask_of(self, chosen: NDArray[np.bool_]) -> NDArray[np.uint8]:
        mask = self.empty_mask()
        packed = np.packbits(chosen, bitorder="little")
        mask[: len(packed)] = packed
        return mask

    def empty_mask(self) -> NDArray[np.uint8]:
        """A mask without any token: a bit for each, the first one lowest, in whole words."""
        return np.zeros((self.size + 31) // 32 * 4, np.uint8)

    def lower(self, logits: NDArray[np.float32], mask: NDArray[np.uint8]) -> None:
        """Sets to −∞, in place, all logits whose token is not in `mask`; NaN stays.

        Takes 40 µs for 152,000 tokens, however many are left. For one thread at a time.
        """
        np.take(_BOUNDS, mask, axis=0, out=self._bounds, mode="clip")
        np.minimum(logits, self._bounds.reshape(-1)[: self.size], out=logits)


SPACE = b" \t\r\n"

_SPECIAL = b"\xff"
"""What llguidance takes for the beginning of a token that is no text: no UTF-8 begins so."""


def _read(
    vocabulary: Vocabulary, markers: Sequence[bytes]
) -> tuple[list[bytes], list[int], list[int]]:
    """The bytes of all tokens, those without text marked; the ids of those that end, and of the
    signals that are text.
    """
    import llama_cpp

    c: Any = llama_cpp  # its stubs describe what ctypes takes only in part
    handle = vocabulary.handle
    buffer = ctypes.create_string_buffer(4096)  # its own: others use the vocabulary's meanwhile
    tokens: list[bytes] = []
    ends: list[int] = []
    signals: list[int] = []
    silent = c.LLAMA_TOKEN_ATTR_CONTROL | c.LLAMA_TOKEN_ATTR_UNKNOWN
    for token in range(vocabulary.size):
        count = c.llama_token_to_piece(handle, token, buffer, len(buffer), 0, True)
        text = bytes(buffer[: max(count, 0)])  # pyright: ignore
        attributes = c.llama_vocab_get_attr(handle, token)
        added = attributes & c.LLAMA_TOKEN_ATTR_USER_DEFINED
        ending = c.llama_vocab_is_eog(handle, token)
        if ending:
            ends.append(token)
        signal = attributes & silent or (added and text[:1] == b"<" and text[-1:] == b">")
        heard = bool(signal and text) and any(text in marker for marker in markers)
        if ending or (signal and not heard):
            text = _SPECIAL + text
        elif heard:
            signals.append(token)
        tokens.append(text)
    return tokens, ends, signals
