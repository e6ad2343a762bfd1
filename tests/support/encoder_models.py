"""Small BERT models with random weights: what an encoder does, without what it means.

Each seed is a model of its own, the same on every machine.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from support.gguf_files import write_out

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("the", "sky", "sea", "is", "blue", "deep", "cat", "sat", "on", "a", "mat", "why")
DIMENSION = 32
CONTEXT = 64


def word_pieces() -> list[str]:
    """A WordPiece vocabulary in llama.cpp's spelling: `▁` begins a word, and nothing its rest."""
    characters = [chr(code) for code in range(ord("!"), ord("~") + 1)]
    begins = [f"▁{piece}" for piece in (*WORDS, *characters)]
    return list(dict.fromkeys([*SPECIAL, *begins, *characters, "ing"]))


def write_encoder(
    path: Path,
    *,
    seed: int = 0,
    pooling: gguf.PoolingType | None = gguf.PoolingType.MEAN,
    poisoned_word: str = "",
    layers: int = 2,
) -> None:
    """Writes a BERT of some 110 kB. With pooling RANK it has a head that scores.

    A text with `poisoned_word` in it, one of `WORDS`, has no numbers as its vector.
    """
    rng = np.random.default_rng(seed)
    vocabulary = word_pieces()
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("encoder")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(DIMENSION)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_vocab_size(len(vocabulary))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(vocabulary)
    writer.add_token_types([control] * len(SPECIAL) + [normal] * (len(vocabulary) - len(SPECIAL)))
    writer.add_token_type_count(2)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(3)
    writer.add_sep_token_id(3)
    writer.add_mask_token_id(4)

    def add(name: str, *shape: int, scale: float = 0.3, around: float = 0.0) -> None:
        numbers = around + scale * rng.standard_normal(shape)
        writer.add_tensor(name, numbers.astype(np.float32))

    tokens = rng.standard_normal((len(vocabulary), DIMENSION)).astype(np.float32)
    if poisoned_word:
        tokens[vocabulary.index(f"▁{poisoned_word}")] = np.nan
    writer.add_tensor("token_embd.weight", tokens)
    add("position_embd.weight", CONTEXT, DIMENSION)
    add("token_types.weight", 2, DIMENSION)
    _add_norm(add, "token_embd_norm")
    for layer in range(layers):
        block = f"blk.{layer}"
        for name, rows, columns in (
            *((f"attn_{part}", DIMENSION, DIMENSION) for part in ("q", "k", "v", "output")),
            ("ffn_up", 64, DIMENSION),
            ("ffn_down", DIMENSION, 64),
        ):
            add(f"{block}.{name}.weight", rows, columns)
            add(f"{block}.{name}.bias", rows)
        _add_norm(add, f"{block}.attn_output_norm")
        _add_norm(add, f"{block}.layer_output_norm")
    if pooling is gguf.PoolingType.RANK:
        add("cls.weight", DIMENSION, DIMENSION)
        add("cls.bias", DIMENSION)
        add("cls.output.weight", 1, DIMENSION)
        add("cls.output.bias", 1)
    write_out(writer)


def _add_norm(add, name: str) -> None:
    add(f"{name}.weight", DIMENSION, scale=0.1, around=1.0)
    add(f"{name}.bias", DIMENSION)
