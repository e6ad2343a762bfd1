"""Whether a GGUF file is whole and consistent, and what it is to a model.

Loaders and quantizers believe what a header says of its tensors. One whose data is declared to lie
outside the file, or to be larger than it, has them read what else is in memory, and write it into
the model that they make (CVE-2026-7482; CVE-2024-39720 and its family end in a crash).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from io import FileIO
from itertools import pairwise
from typing import Any, Literal

from ..gguf_facts import UNKNOWN, facts_of
from ..gguf_metadata import (
    Header,
    InvalidGGUF,
    Tensor,
    place_problem,
    read_open_header,
    shape_problem,
)

Kind = Literal["model", "projector", "adapter"]
"""What a file is to a model, in the words of Ollama's media types."""

_MAX_TENSOR_NAME = 63
"""Bytes that ggml keeps of a tensor's name."""
_ARCHITECTURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PROJECTORS = ("mmproj", "projector")
_FULL = ("F32", "F16", "BF16")

CONVERT = (
    "make one GGUF file of the model first, with llama.cpp's `convert_hf_to_gguf.py` "
    "(`convert_lora_to_gguf.py` for an adapter)"
)

_FOREIGN = (
    (b"PK\x03\x04", "a PyTorch checkpoint"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
    (b"lmgg", "a model in the format before GGUF"),
    (b"fmgg", "a model in the format before GGUF"),
    (b"tjgg", "a model in the format before GGUF"),
    (b"algg", "an adapter in the format before GGUF"),
)
"""What files begin with that are no GGUF."""
_SAFETENSORS = re.compile(rb'(?s).{6}\0\0\{\s*"')
"""A length of 8 bytes, and the begin of a JSON object."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What there is to know of a file, to make a model of it."""

    kind: Kind
    architecture: str
    quantization: str
    """Of most of its weights, in Ollama's words: `F16`, `Q4_K_M`."""
    parameter_size: str
    """How many parameters, as people write it: `8.0B`."""
    full: bool
    """Whether no weight was quantized before."""
    data: int
    """Bytes of all tensors."""


def check_file(file: FileIO) -> FileFacts:
    """The facts of a whole file. Raises `InvalidGGUF` with what is wrong, and what to do where
    something can be done.
    """
    file.seek(0)
    if hint := _foreign(file.read(16) or b""):
        raise InvalidGGUF(hint)
    header = read_open_header(file, tensors=True)
    metadata = header.metadata
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not _ARCHITECTURE.fullmatch(architecture):
        raise InvalidGGUF("it does not name its architecture")
    if (parts := _int(metadata.get("split.count"))) > 1:
        raise InvalidGGUF(
            f"it is one of {parts} parts of a model; make them one file first, with llama.cpp's "
            "`llama-gguf-split --merge`"
        )
    if not header.tensors:
        raise InvalidGGUF("it has no weights")
    check_tensors(header)
    weights = _by_type(header.tensors)
    facts = facts_of(header)
    return FileFacts(
        kind=_kind(metadata, architecture),
        architecture=architecture,
        quantization=weights.most_common(1)[0][0]
        if facts.quantization == UNKNOWN
        else facts.quantization,
        parameter_size=facts.parameter_size,
        full=all(kind in _FULL for kind in weights),
        data=sum(tensor.size or 0 for tensor in header.tensors),
    )


def check_tensors(header: Header) -> None:
    """Raises `InvalidGGUF` unless each tensor is of a known type, lies in the file, and lies there
    alone.
    """
    names: set[str] = set()
    places: list[tuple[int, int, int]] = []
    for number, tensor in enumerate(header.tensors, 1):
        problem = _problem(tensor, header)
        if not problem and tensor.name in names:
            problem = "has a name that another one has, too"
        if problem:
            raise InvalidGGUF(f"its tensor {number} of {len(header.tensors)} {problem}")
        names.add(tensor.name)
        places.append((tensor.offset, tensor.offset + (tensor.size or 0), number))
    for (_, end, first), (start, _, second) in pairwise(sorted(places)):
        if start < end:
            raise InvalidGGUF(f"its tensors {first} and {second} overlap")


def _problem(tensor: Tensor, header: Header) -> str | None:
    if not 0 < len(tensor.name.encode()) <= _MAX_TENSOR_NAME:
        return f"has a name that is empty, or longer than {_MAX_TENSOR_NAME} bytes"
    if tensor.size is None:
        return f"is of {tensor.type}, which this version of Pronk does not know"
    if problem := shape_problem(tensor.shape, tensor.block):
        return problem
    if tensor.offset % header.alignment:
        return f"does not lie at a multiple of {header.alignment} bytes"
    return place_problem(header.data_start + tensor.offset + tensor.size - header.file_size)


def _kind(metadata: dict[str, Any], architecture: str) -> Kind:
    kind = metadata.get("general.type")
    if kind == "adapter":
        return "adapter"
    sees = _int(metadata.get(f"{architecture}.vision.block_count")) > 0
    reads = _int(metadata.get(f"{architecture}.block_count")) > 0
    if kind in _PROJECTORS or architecture == "clip" or (sees and not reads):
        return "projector"
    return "model"


def _by_type(tensors: list[Tensor]) -> Counter[str]:
    """Bytes by type, of what is quantized if a model is: tensors of two dimensions and more."""
    matrices = [tensor for tensor in tensors if len(tensor.shape) > 1] or tensors
    sizes: Counter[str] = Counter()
    for tensor in matrices:
        sizes[tensor.type] += tensor.size or 0
    return sizes


def _foreign(start: bytes) -> str | None:
    """What to do about a file that is none."""
    if start.startswith(b"GGUF"):
        return None
    kind = next((name for magic, name in _FOREIGN if start.startswith(magic)), None)
    if kind is None:
        kind = "a safetensors file" if _SAFETENSORS.match(start) else "no GGUF file"
    return f"it is {kind}; {CONVERT}"


def _int(value: object) -> int:
    return value if type(value) is int else 0
