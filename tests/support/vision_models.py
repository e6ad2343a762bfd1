"""Tiny models that see: a text model and a projector for it, both with random weights.

What they say means nothing, but it depends on every pixel that they are shown. Three ways in which
llama.cpp reads images: row by row like text (`Kind.PLAIN`), all rows of an image at once (`WHOLE`),
and on positions in two dimensions (`GRID`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import gguf
import numpy as np

from .gguf_files import write_out
from .models import (
    Shape,
    Vocabulary,
    add_sizes,
    add_vocabulary,
    matrices_of_layer,
    small_vocabulary,
)

PATCH = 8
"""Pixels of a patch's side."""

_SEES = 32
"""Numbers of a patch inside the projector."""

_HEADS = 4
_BLOCKS = 2


class Kind(Enum):
    """How a model reads an image."""

    PLAIN = "plain"
    """A row of the batch for each patch, each seeing those before it: as LLaVA."""
    WHOLE = "whole"
    """All patches of an image see each other: as Gemma 3."""
    GRID = "grid"
    """A patch's position has two dimensions, and sizes differ: as Qwen2-VL."""


@dataclass(frozen=True)
class VisionModel:
    """Where its two files lie."""

    weights: Path
    projector: Path


_ARCHITECTURES = {Kind.PLAIN: "llama", Kind.WHOLE: "gemma3", Kind.GRID: "qwen2vl"}
_CONTROL = {
    Kind.PLAIN: (),
    Kind.WHOLE: ("<start_of_image>", "<end_of_image>"),
    Kind.GRID: ("<|vision_start|>", "<|vision_end|>"),
}


def write_vision_model(
    directory: Path, kind: Kind = Kind.PLAIN, *, size: int = 64, embedding: int = 64
) -> VisionModel:
    """Writes a model that sees images of `size` × `size` pixels."""
    rng = np.random.default_rng(0)
    # Every sixth layer of Gemma's sees far; llama.cpp cannot shift a context where none does.
    layers = 6 if kind is Kind.WHOLE else 2
    vocabulary = small_vocabulary(_CONTROL[kind])
    text = Shape(len(vocabulary.tokens), embedding, layers, 4, 2, 128, context=4096)
    model = VisionModel(directory / f"{kind.value}.gguf", directory / f"{kind.value}-sees.gguf")
    _write_text(model.weights, kind, text, vocabulary, rng)
    _write_projector(model.projector, kind, embedding, size, rng)
    return model


def _write_text(
    path: Path, kind: Kind, shape: Shape, vocabulary: Vocabulary, rng: np.random.Generator
) -> None:
    writer = gguf.GGUFWriter(path, _ARCHITECTURES[kind])
    head = shape.head
    writer.add_name("tiny")
    add_sizes(writer, shape)
    writer.add_rope_freq_base(1e4)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    if kind is Kind.GRID:
        writer.add_rope_dimension_sections([head // 8, head // 8, head // 4, 0])
    else:
        writer.add_rope_dimension_count(head)
    if kind is Kind.WHOLE:
        writer.add_key_length(head)
        writer.add_value_length(head)
        writer.add_sliding_window(512)
    add_vocabulary(writer, vocabulary, control=len(_CONTROL[kind]))
    sizes = matrices_of_layer(shape)
    embeddings = _random(rng, len(vocabulary.tokens), shape.embedding, 1.0)
    writer.add_tensor("token_embd.weight", embeddings)
    output = _random(rng, len(vocabulary.tokens), shape.embedding)
    output[-3:] = 0  # no answer ends before its time
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", _ones(shape.embedding))
    norms = ["attn_norm", "ffn_norm"]
    if kind is Kind.WHOLE:
        norms += ["post_attention_norm", "post_ffw_norm"]
    for layer in range(shape.layers):
        for name in norms:
            writer.add_tensor(f"blk.{layer}.{name}.weight", _ones(shape.embedding))
        for name, rows, columns in sizes:
            writer.add_tensor(f"blk.{layer}.{name}.weight", _random(rng, rows, columns))
        if kind is Kind.WHOLE:
            for name in ("attn_q_norm", "attn_k_norm"):
                writer.add_tensor(f"blk.{layer}.{name}.weight", _ones(head))
        if kind is Kind.GRID:
            for name, rows, _ in sizes[:3]:
                writer.add_tensor(f"blk.{layer}.{name}.bias", np.zeros(rows, np.float32))
    write_out(writer)


def _write_projector(
    path: Path, kind: Kind, embedding: int, size: int, rng: np.random.Generator
) -> None:
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_name("tiny eyes")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_clip_has_vision_encoder(True)
    names = {Kind.PLAIN: "mlp", Kind.WHOLE: "gemma3", Kind.GRID: "qwen2vl_merger"}
    writer.add_clip_projector_type(names[kind])
    writer.add_vision_image_size(size)
    writer.add_vision_patch_size(PATCH)
    writer.add_vision_embedding_length(_SEES)
    writer.add_vision_feed_forward_length(4 * _SEES)
    writer.add_vision_projection_dim(embedding)
    writer.add_vision_block_count(_BLOCKS)
    writer.add_vision_head_count(_HEADS)
    writer.add_vision_attention_layernorm_eps(1e-5)
    writer.add_vision_image_mean([0.5] * 3)
    writer.add_vision_image_std([0.5] * 3)
    writer.add_vision_use_gelu(True)

    def dense(name: str, rows: int, columns: int) -> None:
        writer.add_tensor(f"{name}.weight", _random(rng, rows, columns))
        writer.add_tensor(f"{name}.bias", _random(rng, 1, rows)[0])

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", _ones(_SEES))
        writer.add_tensor(f"{name}.bias", np.zeros(_SEES, np.float32))

    patches = (size // PATCH) ** 2
    kernel = rng.standard_normal((_SEES, 3, PATCH, PATCH)).astype(np.float32) / PATCH
    writer.add_tensor("v.patch_embd.weight", kernel)
    if kind is Kind.GRID:
        writer.add_tensor("v.patch_embd.weight.1", kernel[::-1].copy())
        writer.add_uint32("clip.vision.spatial_merge_size", 2)
    else:
        places = patches + (kind is Kind.PLAIN)
        writer.add_tensor("v.position_embd.weight", _random(rng, places, _SEES, 1.0))
    if kind is Kind.PLAIN:
        writer.add_tensor("v.class_embd", _random(rng, 1, _SEES)[0])
        norm("v.pre_ln")
    else:
        norm("v.post_ln")
    for block in range(_BLOCKS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            dense(f"v.blk.{block}.{name}", _SEES, _SEES)
        dense(f"v.blk.{block}.ffn_up", 4 * _SEES, _SEES)
        dense(f"v.blk.{block}.ffn_down", _SEES, 4 * _SEES)
        norm(f"v.blk.{block}.ln1")
        norm(f"v.blk.{block}.ln2")
    if kind is Kind.WHOLE:
        writer.add_tensor("mm.input_projection.weight", _random(rng, _SEES, embedding))
        writer.add_tensor("mm.soft_emb_norm.weight", _ones(_SEES))
    else:
        inner = 4 * _SEES if kind is Kind.GRID else _SEES
        dense("mm.0", inner, inner)
        dense("mm.2", embedding, inner)
    write_out(writer)


def _random(
    rng: np.random.Generator, rows: int, columns: int, scale: float | None = None
) -> np.ndarray:
    return rng.standard_normal((rows, columns), np.float32) * (scale or columns**-0.5)


def _ones(size: int) -> np.ndarray:
    return np.ones(size, np.float32)
