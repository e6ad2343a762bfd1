"""Models that tests and benchmarks make for themselves, with a vocabulary invented here.

- `ensure_model("12m")`, `ensure_model("0.5b")`: random weights in Q8_0, for measuring. Their text
  means nothing, but they cost what a model of that size costs.
- `write_reciting_model`: weights set by hand so that each token has one likely successor. It says
  a text that is known beforehand, for tests of everything around the model.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import gguf
import numpy as np

from support.gguf_files import write_out

CACHE = Path(__file__).resolve().parents[2] / ".bench"

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INFILL = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_symbols() -> list[str]:
    """The printable stand-ins of bytes 0 to 255 in a byte-level BPE vocabulary, as GPT-2 has it."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id: 256 bytes, then what merges make of them, then `SPECIAL`."""

    tokens: list[str]
    merges: list[str]
    signals: int = 0
    """Control tokens before `SPECIAL`."""

    @property
    def end_of_turn(self) -> int:
        return len(self.tokens) - 1


def invent_vocabulary(size: int, rng: np.random.Generator) -> Vocabulary:
    """A vocabulary of `size` tokens, whose merges join shorter tokens at random."""
    tokens = byte_symbols()
    letters = [byte_symbols()[ord(letter)] for letter in " etaoinshrdlucmfwygpbvkqjxz"]
    known, parts, merges = set(tokens), list(letters), list[str]()
    while len(tokens) < size - len(SPECIAL):
        left, right = (parts[int(index)] for index in rng.integers(len(parts), size=2))
        joined = left + right
        if len(joined) > 12 or joined in known:
            continue
        known.add(joined)
        tokens.append(joined)
        merges.append(f"{left} {right}")
        if len(joined) <= 6:
            parts.append(joined)
    return Vocabulary([*tokens, *SPECIAL], merges)


def small_vocabulary(control: Sequence[str] = ()) -> Vocabulary:
    """The bytes and one merge: the least that llama.cpp takes for a byte-level BPE vocabulary.

    `control` are tokens before `SPECIAL`.
    """
    return Vocabulary([*byte_symbols(), "ab", *control, *SPECIAL], ["a b"])


@dataclass(frozen=True)
class Shape:
    """The sizes of a llama-architecture model."""

    vocabulary: int
    embedding: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    context: int = 32768

    @property
    def head(self) -> int:
        """Numbers of an attention head."""
        return self.embedding // self.heads


SHAPES = {
    "12m": Shape(32_000, 256, 4, 4, 2, 768),
    "0.5b": Shape(151_936, 896, 24, 14, 2, 4864),
}


def ensure_model(name: Literal["12m", "0.5b"]) -> Path:
    """The path of a random model, made at the first call and kept under `.bench/`."""
    path = CACHE / f"random-{name}.gguf"
    if not path.exists():
        CACHE.mkdir(exist_ok=True)
        print(f"making {path.name}, once …", flush=True)
        rng = np.random.default_rng(0)
        vocabulary = invent_vocabulary(SHAPES[name].vocabulary, rng)
        _replace(path, lambda out: write_random_model(out, SHAPES[name], vocabulary, rng))
    return path


def _replace(path: Path, write) -> None:
    """Has `write` make the file beside `path`, and moves it there when it is whole."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(descriptor)
    try:
        write(Path(temporary))
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def write_random_model(
    path: Path, shape: Shape, vocabulary: Vocabulary, rng: np.random.Generator
) -> None:
    """Writes a Q8_0 model. Embedding and output share their weights, as small models have it.

    Special tokens have no embedding, so that no answer ends before its time.
    """
    writer = _writer(path, shape, vocabulary, gguf.LlamaFileType.MOSTLY_Q8_0)
    q8 = gguf.GGMLQuantizationType.Q8_0

    def matrix(name: str, rows: int, columns: int, silent_rows: int = 0) -> None:
        weights = rng.standard_normal((rows, columns), dtype=np.float32) * 0.02
        weights[rows - silent_rows :] = 0
        writer.add_tensor(name, gguf.quants.quantize(weights, q8), raw_dtype=q8)

    matrix("token_embd.weight", shape.vocabulary, shape.embedding, len(SPECIAL))
    for name, rows, columns in _matrices(shape):
        matrix(name, rows, columns)
    _finish(writer, shape)


def write_reciting_model(
    path: Path,
    chains: Sequence[str],
    *,
    margin: float = 17.0,
    context: int = 2048,
    poison: str = "",
    tokenizer: str = "gpt-2",
    infill: str = "",
) -> None:
    """Writes a model (2 MB) in which each byte of a chain is followed by the next one.

    The end of a chain is followed by the end of turn, and so is every byte in no chain; within all
    chains a byte may stand only once. The start of an assistant's turn, a newline, is followed by
    the first chain's first byte. Logits are `margin` for the successor and 0 for all others: large,
    and even sampling follows the chain; small, and sampling strays.

    The bytes of `poison` are embedded as NaN: the logits of every token that sees one of them, and
    of that token itself, are no numbers. `tokenizer` is how text is cut into words before bytes are
    merged, in llama.cpp's words. With `infill`, a chain's beginning, the model has `INFILL`, and
    writes that chain into the gap.
    """
    vocabulary = small_vocabulary(INFILL if infill else ())
    size, embedding = len(vocabulary.tokens), 288
    shape = Shape(size, embedding, 1, 4, 4, 32, context)
    successor = np.full(size, vocabulary.end_of_turn)
    for chain in chains:
        data = chain.encode()
        for byte, following in pairwise(data):
            successor[byte] = following
    successor[ord("\n")] = chains[0].encode()[0]
    if infill:
        successor[vocabulary.tokens.index(INFILL[-1])] = infill.encode()[0]

    # A one-hot embedding leaves the normalization as √embedding at its place.
    output = np.zeros((size, embedding), np.float32)
    output[successor, np.arange(size)] = margin / np.sqrt(embedding)
    writer = _writer(path, shape, vocabulary, gguf.LlamaFileType.ALL_F32, tokenizer)
    embeddings = np.eye(size, embedding, dtype=np.float32)
    embeddings[list(poison.encode())] = np.nan
    writer.add_tensor("token_embd.weight", embeddings)
    writer.add_tensor("output.weight", output)
    for name, rows, columns in _matrices(shape):
        writer.add_tensor(name, np.zeros((rows, columns), np.float32))
    _finish(writer, shape)


def _matrices(shape: Shape) -> list[tuple[str, int, int]]:
    """Name, rows and columns of all layers' matrices."""
    return [
        (f"blk.{layer}.{name}.weight", rows, columns)
        for layer in range(shape.layers)
        for name, rows, columns in matrices_of_layer(shape)
    ]


def matrices_of_layer(shape: Shape) -> list[tuple[str, int, int]]:
    """Name, rows and columns."""
    wide, narrow = shape.embedding, shape.feed_forward
    kv = shape.kv_heads * shape.head
    return [
        ("attn_q", wide, wide),
        ("attn_k", kv, wide),
        ("attn_v", kv, wide),
        ("attn_output", wide, wide),
        ("ffn_gate", narrow, wide),
        ("ffn_up", narrow, wide),
        ("ffn_down", wide, narrow),
    ]


def _writer(
    path: Path,
    shape: Shape,
    vocabulary: Vocabulary,
    file_type: gguf.LlamaFileType,
    tokenizer: str = "gpt-2",
) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random")
    add_sizes(writer, shape)
    writer.add_rope_freq_base(1e6)
    writer.add_rope_dimension_count(shape.head)
    writer.add_file_type(file_type)
    add_vocabulary(writer, vocabulary, tokenizer)
    return writer


def add_sizes(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Adds the sizes of a model."""
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embedding)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)


def add_vocabulary(
    writer: gguf.GGUFWriter, vocabulary: Vocabulary, tokenizer: str = "gpt-2", control: int = 0
) -> None:
    """Adds the vocabulary with its special tokens, and a chat template that uses them.

    So many tokens before `SPECIAL` are `control` tokens as well.
    """
    writer.add_vocab_size(len(vocabulary.tokens))
    ordinary = len(vocabulary.tokens) - len(SPECIAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tokenizer)
    writer.add_token_list(vocabulary.tokens)
    first = ordinary - max(control, vocabulary.signals)
    kinds = [gguf.TokenType.NORMAL] * first
    kinds += [gguf.TokenType.CONTROL] * (len(vocabulary.tokens) - first)
    writer.add_token_types(kinds)
    writer.add_token_merges(vocabulary.merges)
    writer.add_bos_token_id(ordinary)
    writer.add_eos_token_id(vocabulary.end_of_turn)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML)


def _finish(writer: gguf.GGUFWriter, shape: Shape) -> None:
    ones = np.ones(shape.embedding, np.float32)
    for layer in range(shape.layers):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", ones)
        writer.add_tensor(f"blk.{layer}.ffn_norm.weight", ones)
    writer.add_tensor("output_norm.weight", ones)
    write_out(writer)
