"""LoRA adapters in GGUF, as llama.cpp's converter makes them, for models that tests have."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from support.gguf_files import write_out


def write_adapter(
    path: Path,
    weights: Path,
    *,
    seed: int = 0,
    strength: float = 0.5,
    rank: int = 4,
    architecture: str | None = None,
    metadata: dict[str, Any] | None = None,
    names: Iterable[str] = ("attn_q", "attn_v", "ffn_down"),
    number: type[Any] = np.float32,
    matrices: int = 1,
) -> Path:
    """Writes an adapter for the model in `weights`: random numbers for the matrices of each layer
    whose names hold one of `names`. The same `seed` makes the same file.

    `strength` is about how large its part of what those matrices give is beside theirs, 0 for none
    at all. `architecture` is the model's where nothing else is said; `metadata` are more entries,
    and those with the value None are left out. `number` is the type of all numbers,
    and of each matrix there are `matrices` in one tensor, as models of experts have it.
    """
    rng = np.random.default_rng(seed)
    reader = gguf.GGUFReader(weights)
    writer = _writer(path, reader, rank, architecture, metadata or {})
    for tensor in reader.tensors:
        if len(tensor.shape) != 2 or not any(name in tensor.name for name in names):
            continue
        columns, rows = (int(size) for size in tensor.shape)
        typical = float(np.std(gguf.quants.dequantize(tensor.data, tensor.tensor_type)))
        scale = strength * typical * np.sqrt(1 / rank)
        a = rng.standard_normal((rank, columns), dtype=np.float32)
        b = rng.standard_normal((rows, rank), dtype=np.float32) * np.float32(scale)
        for half, matrix in (("lora_a", a), ("lora_b", b)):
            stacked = np.stack([matrix.astype(number)] * matrices)
            writer.add_tensor(f"{tensor.name}.{half}", stacked if matrices > 1 else stacked[0])
    write_out(writer)
    return path


def write_reciting_adapter(path: Path, weights: Path, chain: str) -> Path:
    """Writes an adapter with which a model of `write_reciting_model` has each byte of `chain`
    followed by the next one, as surely as what it said before.
    """
    reader = gguf.GGUFReader(weights)
    (output,) = (tensor for tensor in reader.tensors if tensor.name == "output.weight")
    numbers = np.asarray(output.data)
    steps = list(pairwise(chain.encode()))
    a = np.zeros((len(steps), numbers.shape[1]), np.float32)
    b = np.zeros((numbers.shape[0], len(steps)), np.float32)
    for place, (byte, following) in enumerate(steps):
        a[place, byte] = 1
        b[:, place] -= numbers[:, byte]
        b[following, place] += numbers[:, byte].max()
    writer = _writer(path, reader, len(steps), None, {})
    writer.add_tensor("output.weight.lora_a", a)
    writer.add_tensor("output.weight.lora_b", b)
    write_out(writer)
    return path


def _writer(
    path: Path,
    reader: gguf.GGUFReader,
    rank: int,
    architecture: str | None,
    metadata: dict[str, Any],
) -> gguf.GGUFWriter:
    own = reader.get_field("general.architecture")
    assert own
    writer = gguf.GGUFWriter(path, architecture or own.contents())
    for key, value in {"general.type": "adapter", "adapter.type": "lora", **metadata}.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            types = gguf.GGUFValueType
            writer.add_key_value(key, value, types.ARRAY, sub_type=types.UINT32)
    writer.add_float32("adapter.lora.alpha", float(rank))  # the factor alpha / rank is 1
    return writer
