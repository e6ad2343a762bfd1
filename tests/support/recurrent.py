"""Tiny models whose memory is a running state, for tests of what cannot be cut like a KV cache.

A recurrent layer (Mamba) keeps one state per sequence, which holds everything read so far. A hybrid
model has attention layers between recurrent ones, so that it has both kinds of memory. The weights
are random and large: each token of an answer depends on the whole text before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from .gguf_files import write_out
from .models import SPECIAL, Vocabulary, add_vocabulary, small_vocabulary


@dataclass(frozen=True)
class RecurrentShape:
    """The sizes of a model; `inner` must be twice `embedding`."""

    attention: tuple[bool, ...]
    """For each layer, whether it has attention instead of a state."""
    embedding: int = 64
    inner: int = 128
    state: int = 16
    rank: int = 4
    kernel: int = 4
    heads: int = 4
    kv_heads: int = 2
    feed_forward: int = 96
    context: int = 2048

    @property
    def hybrid(self) -> bool:
        return any(self.attention)


RECURRENT = RecurrentShape((False, False, False))
HYBRID = RecurrentShape((False, True, False))


def write_recurrent_model(path: Path, shape: RecurrentShape = RECURRENT, *, seed: int = 0) -> None:
    """Writes a model (under 1 MB): Mamba, or Jamba where `shape` has attention layers too."""
    rng = np.random.default_rng(seed)
    vocabulary = small_vocabulary()
    writer = _writer(path, shape, vocabulary)
    # Special tokens are neither embedded nor chosen, so that no answer ends before its time.
    ordinary = len(vocabulary.tokens) - len(SPECIAL)
    for name in ("token_embd", "output"):
        weights = rng.standard_normal((len(vocabulary.tokens), shape.embedding), np.float32)
        if name == "token_embd":
            weights *= 0.1  # what was read before weighs more than the last token
        weights[ordinary:] = 0
        writer.add_tensor(f"{name}.weight", weights)
    writer.add_tensor("output_norm.weight", np.ones(shape.embedding, np.float32))
    for layer, attention in enumerate(shape.attention):
        parts = [*_attention(shape, rng)] if attention else [*_recurrence(shape, rng)]
        if shape.hybrid:
            parts += _feed_forward(shape, rng)
        for name, values in parts:
            writer.add_tensor(f"blk.{layer}.{name}", values.astype(np.float32))
    write_out(writer)


_Tensors = Iterator[tuple[str, np.ndarray]]


def _matrix(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Random weights that leave the size of what they are applied to as it is."""
    return rng.standard_normal((rows, columns)) / np.sqrt(columns)


def _recurrence(shape: RecurrentShape, rng: np.random.Generator) -> _Tensors:
    inner, state, rank = shape.inner, shape.state, shape.rank
    yield "attn_norm.weight", np.ones(shape.embedding)
    yield "ssm_in.weight", _matrix(rng, 2 * inner, shape.embedding)
    yield "ssm_conv1d.weight", _matrix(rng, inner, shape.kernel)
    yield "ssm_conv1d.bias", np.zeros(inner)
    yield "ssm_x.weight", _matrix(rng, rank + 2 * state, inner)
    yield "ssm_dt.weight", _matrix(rng, inner, rank)
    # The steps are small and the decay is slow: what was read stays in the state for long.
    yield "ssm_dt.bias", np.full(inner, -2.0)
    yield "ssm_a", np.broadcast_to(-np.linspace(0.001, 0.5, state), (inner, state))
    yield "ssm_d", np.ones(inner)
    yield "ssm_out.weight", _matrix(rng, shape.embedding, inner)
    if shape.hybrid:
        yield "ssm_dt_norm.weight", np.ones(rank)
        yield "ssm_b_norm.weight", np.ones(state)
        yield "ssm_c_norm.weight", np.ones(state)


def _attention(shape: RecurrentShape, rng: np.random.Generator) -> _Tensors:
    wide = shape.embedding
    narrow = wide // shape.heads * shape.kv_heads
    yield "attn_norm.weight", np.ones(wide)
    yield "attn_q.weight", _matrix(rng, wide, wide)
    yield "attn_k.weight", _matrix(rng, narrow, wide)
    yield "attn_v.weight", _matrix(rng, narrow, wide)
    yield "attn_output.weight", _matrix(rng, wide, wide)


def _feed_forward(shape: RecurrentShape, rng: np.random.Generator) -> _Tensors:
    wide, narrow = shape.embedding, shape.feed_forward
    yield "ffn_norm.weight", np.ones(wide)
    yield "ffn_gate.weight", _matrix(rng, narrow, wide)
    yield "ffn_up.weight", _matrix(rng, narrow, wide)
    yield "ffn_down.weight", _matrix(rng, wide, narrow)


def _writer(path: Path, shape: RecurrentShape, vocabulary: Vocabulary) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, "jamba" if shape.hybrid else "mamba")
    writer.add_name("recurrent")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embedding)
    writer.add_block_count(len(shape.attention))
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(shape.kernel)
    writer.add_ssm_inner_size(shape.inner)
    writer.add_ssm_state_size(shape.state)
    writer.add_ssm_time_step_rank(shape.rank)
    if shape.hybrid:
        writer.add_feed_forward_length(shape.feed_forward)
        writer.add_head_count(shape.heads)
        writer.add_head_count_kv([shape.kv_heads if here else 0 for here in shape.attention])
    else:
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    add_vocabulary(writer, vocabulary)
    return writer
