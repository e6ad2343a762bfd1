"""LoRA adapters: small matrices that are added to a model's own while it computes.

They are loaded with their model, before any context is made, and freed with it. Every context has
to be told of them: what one computes without them is another model's.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp

from ...protocol.errors import Code, PronkError

if TYPE_CHECKING:
    from ..store.gguf_metadata import Header

_c: Any = llama_cpp  # its stubs describe what ctypes takes only in part

_SCALE = 1.0
"""Beside the factor that each adapter's own file asks for. A Modelfile cannot name another."""

_NO_FACTORS = ("I8", "I16", "I32", "I64", "F64")
"""Types of numbers with which llama.cpp multiplies nothing."""


class Adapters:
    """The adapters of one loaded model, in the order in which they are applied."""

    def __init__(
        self, model: Any, weights: Path, paths: Sequence[Path], why: Callable[[], PronkError]
    ) -> None:
        """`model` is llama.cpp's, from the file `weights`, and owns them from now on; `why` tells
        from llama.cpp's log why a call failed. Raises `PronkError` (LOAD_FAILED) where one cannot
        be applied.
        """
        self._handles: list[Any] = []
        self.size = 0
        """Bytes of the files, which are little more than their tensors."""
        shapes = _shapes(_header(weights, "the model")) if paths else {}
        for place, path in enumerate(paths, 1):
            which = "its adapter" if len(paths) == 1 else f"its adapter {place}"
            _check(_header(path, which), which, shapes)
            self.size += path.stat().st_size
            handle = _c.llama_adapter_lora_init(model, str(path).encode())
            if not handle:
                raise _refusal(f"{which}: {why().message.strip()}")
            if _c.llama_adapter_get_alora_n_invocation_tokens(handle):
                raise _refusal(
                    f"{which} works only behind certain tokens (aLoRA), which Pronk cannot do; "
                    "use a plain LoRA"
                )
            self._handles.append(handle)

    def apply(self, context: Any) -> None:
        """Has a new context compute with them. Raises `PronkError` (LOAD_FAILED)."""
        count = len(self._handles)
        if not count:
            return
        handles = (_c.llama_adapter_lora_p_ctypes * count)(*self._handles)
        scales = (ctypes.c_float * count)(*[_SCALE] * count)
        if _c.llama_set_adapters_lora(context, handles, count, scales) != 0:
            raise _refusal("its adapters cannot be applied")


def _refusal(message: str) -> PronkError:
    return PronkError(Code.LOAD_FAILED, message)


def _header(path: Path, which: str) -> Header:
    from ..store.gguf_metadata import InvalidGGUF, read_header  # takes its time

    try:
        return read_header(path, tensors=True)
    except InvalidGGUF as error:
        raise _refusal(f"{which} is not a valid GGUF file: {error}") from None


def _shapes(header: Header) -> dict[str, list[int]]:
    return {tensor.name: tensor.shape for tensor in header.tensors}


def _check(header: Header, which: str, shapes: Mapping[str, list[int]]) -> None:
    """Refuses what llama.cpp would not refuse but die of.

    `shapes` are those of the model's tensors, by name.
    """
    if header.missing_bytes:
        raise _refusal(f"{which} lacks the last {header.missing_bytes} bytes of its tensors")
    if any(tensor.type in _NO_FACTORS for tensor in header.tensors):
        raise _refusal(f"{which} has tensors of whole or of 64-bit numbers")
    for name, shape in _shapes(header).items():
        base = shapes.get(name.removesuffix(".lora_a").removesuffix(".lora_b"), shape)
        # It compares rows and columns itself, but not how many matrices there are.
        if _matrices(shape) != _matrices(base):
            raise _refusal(f"{which} has tensors of another shape than the model's")


def _matrices(shape: list[int]) -> int:
    return math.prod(shape[2:])
