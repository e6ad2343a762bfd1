"""Read a finished GGUF back, to go on training where nobody kept a checkpoint."""

from pathlib import Path

import gguf
import numpy as np
import tokenizer as vocabulary
from export import LAYER_MATRICES, neighbours
from model import Shape
from tokenizers import Tokenizer


def matrices(reader: gguf.GGUFReader, shape: Shape) -> dict[str, np.ndarray]:
    """The weights in our layout, as exact as the file's eight bits are."""
    arrays = {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        for tensor in reader.tensors
    }
    params = {"embed": arrays["token_embd.weight"], "out_norm": arrays["output_norm.weight"]}
    layers = range(shape.layers)
    for name in ("attn_norm", "ffn_norm"):
        params[name] = np.stack([arrays[f"blk.{i}.{name}.weight"] for i in layers])
    for ours, theirs in LAYER_MATRICES.items():
        stacked = [arrays[f"blk.{i}.{theirs}.weight"].T for i in layers]
        if ours in ("q", "k"):
            order = np.argsort(neighbours(np.arange(stacked[0].shape[1])[None], shape.head_dim)[0])
            stacked = [matrix[:, order] for matrix in stacked]
        params[ours] = np.stack(stacked)
    return params


def grown(embed: np.ndarray, rows: int, seed: int) -> np.ndarray:
    """An embedding with rows for the tokens that the file did not have: a faint average each."""
    new = rows - len(embed)
    noise = np.random.default_rng(seed).normal(size=(new, embed.shape[1])) * embed.std() / 2
    return np.concatenate([embed, embed.mean(axis=0) + noise]).astype(np.float32)


def restore(path: Path, shape: Shape, seed: int) -> tuple[dict[str, np.ndarray], Tokenizer]:
    """Weights and tokenizer of the GGUF at `path`, with the tokens that it lacks."""
    reader = gguf.GGUFReader(path)
    tokens, merges = (
        reader.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges")
    )
    tokenizer = vocabulary.rebuild(tokens, merges)
    params = matrices(reader, shape)
    params["embed"] = grown(params["embed"], tokenizer.get_vocab_size(), seed)
    return params, tokenizer
