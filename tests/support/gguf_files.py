"""GGUF files, whole ones and such as nobody should believe."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

F32, F16, Q8_0 = 0, 1, 8
U32, STRING = 4, 8


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, value: int | str) -> bytes:
    if isinstance(value, int):
        return text(key) + struct.pack("<II", U32, value)
    return text(key) + struct.pack("<I", STRING) + text(value)


def tensor(
    name: str | bytes = "w", shape: Sequence[int] = (32,), kind: int = F32, offset: int = 0
) -> bytes:
    """One entry of the list of tensors."""
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


LLAMA = pair("general.architecture", "llama")


def gguf_bytes(
    *tensors: bytes, pairs: Iterable[bytes] = (LLAMA,), data: int = 0, alignment: int = 32
) -> bytes:
    """A file with these tensors, and so many bytes of data behind its header."""
    given = list(pairs)
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(given)) + b"".join(given)
    header += b"".join(tensors)
    return header + bytes(-len(header) % alignment + data)


def small_gguf(
    path: Path,
    architecture: str = "llama",
    *,
    seed: int = 0,
    metadata: dict[str, Any] | None = None,
) -> Path:
    """A whole file of an architecture, with one matrix in F16; another `seed`, other weights."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (metadata or {}).items():
        if isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    weights = np.random.default_rng(seed).standard_normal((8, 64)).astype(np.float16)
    writer.add_tensor("token_embd.weight", weights)
    writer.add_tensor("output_norm.weight", np.ones(64, np.float32))
    write_out(writer)
    return path


def write_out(writer: gguf.GGUFWriter) -> None:
    """Writes all that was added, and closes the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
