"""Vocabularies without a model around them: what tokens look like is all that they have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import llama_cpp

from pronk.workers.inference.vocabulary import Vocabulary
from support.gguf_files import write_out
from support.models import byte_symbols

_c: Any = llama_cpp

_PIECE = "\u2581"
"""How a vocabulary of SentencePiece writes a space."""


@contextmanager
def byte_vocabulary(
    directory: Path, control: Sequence[str], added: Sequence[str] = ()
) -> Iterator[Vocabulary]:
    """Bytes, one merge, and tokens that stand for themselves: `added` ones in any text."""
    tokens = [*byte_symbols(), "ab", *control, *added]
    with _written(directory, "gpt2", tokens, len(control), len(added)) as vocabulary:
        yield vocabulary


@contextmanager
def sentence_vocabulary(
    directory: Path,
    control: Sequence[str],
    added: Sequence[str] = (),
    *,
    name: str = "",
    words: Sequence[str] = (),
) -> Iterator[Vocabulary]:
    """Like Llama 2's: a space is put before each text, and bytes stand for unknown characters.

    By a model's `name` llama.cpp knows that its tokens take the white space behind them along.
    `words` are further tokens of text.
    """
    pieces = [*(chr(code) for code in range(33, 127)), _PIECE, f"{_PIECE}a", "ab", *words]
    tokens = [*(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *control, *added]
    with _written(directory, "llama", tokens, len(control), len(added), name) as vocabulary:
        yield vocabulary


@contextmanager
def _written(
    directory: Path, model: str, tokens: list[str], control: int, added: int, name: str = ""
) -> Iterator[Vocabulary]:
    path = directory / "vocabulary.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    if name:
        writer.add_name(name)
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    kinds = gguf.TokenType
    ordinary = len(tokens) - control - added
    types = [kinds.NORMAL] * ordinary + [kinds.CONTROL] * control + [kinds.USER_DEFINED] * added
    if model == "gpt2":
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges(["a b"])
    else:
        types[:256] = [kinds.BYTE] * 256
        writer.add_token_scores([-float(number) for number in range(len(tokens))])
        writer.add_add_space_prefix(True)
    writer.add_token_types(types)
    writer.add_bos_token_id(ordinary)
    writer.add_eos_token_id(ordinary)
    writer.add_add_bos_token(False)
    write_out(writer)
    parameters = _c.llama_model_default_params()
    parameters.vocab_only = True
    model_handle = _c.llama_model_load_from_file(str(path).encode(), parameters)
    assert model_handle
    try:
        yield Vocabulary(_c.llama_model_get_vocab(model_handle))
    finally:
        _c.llama_model_free(model_handle)
