"""LoRA adapters in GGUF, as llama.cpp's converter makes them, for models that tests have."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np


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
) -> Path:
    """Writes an adapter for the model in `weights`: random numbers for the matrices of each layer
    whose names hold one of `names`. The same `seed` makes the same file.

    `strength` is about how large its part of what those matrices give is beside theirs, 0 for none
    at all. `architecture` is the model's where nothing else is said; `metadata` are more entries,
    and those with the value None are left out. `number` is the type of all numbers.
    """
    rng = np.random.default_rng(seed)
    reader = gguf.GGUFReader(weights)
    own = reader.get_field("general.architecture")
    assert own
    writer = gguf.GGUFWriter(path, architecture or own.contents())
    entries = {"general.type": "adapter", "adapter.type": "lora", **(metadata or {})}
    for key, value in entries.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            types = gguf.GGUFValueType
            writer.add_key_value(key, value, types.ARRAY, sub_type=types.UINT32)
    writer.add_float32("adapter.lora.alpha", float(rank))  # the factor alpha / rank is 1
    for tensor in reader.tensors:
        if len(tensor.shape) != 2 or not any(name in tensor.name for name in names):
            continue
        columns, rows = (int(size) for size in tensor.shape)
        typical = float(np.std(gguf.quants.dequantize(tensor.data, tensor.tensor_type)))
        scale = strength * typical * np.sqrt(1 / rank)
        a = rng.standard_normal((rank, columns), dtype=np.float32)
        b = rng.standard_normal((rows, rank), dtype=np.float32) * np.float32(scale)
        writer.add_tensor(f"{tensor.name}.lora_a", a.astype(number))
        writer.add_tensor(f"{tensor.name}.lora_b", b.astype(number))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
