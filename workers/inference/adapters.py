"""LoRA adapters: small matrices that are added to a model's own while it computes.

They are loaded with their model, before any context is made, and freed with it. Every context has
to be told of them: what one computes without them is another model's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llama_cpp

from ...protocol.errors import Code, PronkError

_c: Any = llama_cpp  # its stubs describe what ctypes takes only in part

_SCALE = 1.0
"""Beside the factor that each adapter's own file asks for. A Modelfile cannot name another."""

_NO_FACTORS = ("I8", "I16", "I32", "I64", "F64")
"""Types of numbers with which llama.cpp multiplies nothing: it would end the process."""


class Adapters:
    """The adapters of one loaded model, in the order in which they are applied."""

    def __init__(self, model: Any, paths: Sequence[Path], why: Callable[[], PronkError]) -> None:
        """`model` is llama.cpp's, which owns them from now on; `why` tells from llama.cpp's log why
        a call failed. Raises `PronkError` (LOAD_FAILED) where one cannot be applied.
        """
        self._handles: list[Any] = []
        self.size = 0
        """Bytes of the files, which are little more than their tensors."""
        for place, path in enumerate(paths, 1):
            which = "its adapter" if len(paths) == 1 else f"its adapter {place}"
            self.size += _check(path, which)
            handle = _c.llama_adapter_lora_init(model, str(path).encode())
            if not handle:
                raise PronkError(Code.LOAD_FAILED, f"{which}: {why().message}")
            if _c.llama_adapter_get_alora_n_invocation_tokens(handle):
                raise PronkError(
                    Code.LOAD_FAILED,
                    f"{which} works only behind certain tokens (aLoRA), which Pronk cannot do; "
                    "use a plain LoRA",
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
            raise PronkError(Code.LOAD_FAILED, "its adapters cannot be applied")


def _check(path: Path, which: str) -> int:
    """The size of a file in bytes. Refuses one that llama.cpp would not refuse but die of."""
    from ..store.gguf_metadata import InvalidGGUF, read_header  # takes its time

    try:
        header = read_header(path, verbose=True)
        size = path.stat().st_size
    except OSError as error:
        raise PronkError(Code.LOAD_FAILED, f"{which} cannot be read ({error.strerror})") from None
    except InvalidGGUF as error:
        raise PronkError(
            Code.LOAD_FAILED, f"{which} is not a valid GGUF file: {error}; convert it anew"
        ) from None
    if header.missing_bytes:
        raise PronkError(
            Code.LOAD_FAILED, f"{which} lacks the last {header.missing_bytes} bytes of its tensors"
        )
    if any(tensor.type in _NO_FACTORS for tensor in header.tensors):
        raise PronkError(Code.LOAD_FAILED, f"{which} has tensors of whole or of 64-bit numbers")
    return size
