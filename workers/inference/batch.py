"""A `llama_batch` whose arrays are numpy's, so that filling it is an assignment of lists."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
import numpy as np

_c: Any = llama_cpp  # its stubs describe what ctypes takes only in part


class Batch:
    """Rows for one decode: of each its token, position and sequence, and whether its output is
    wanted.
    """

    def __init__(self, capacity: int) -> None:
        """`capacity` in rows."""
        self.tokens = np.zeros(capacity, np.int32)
        self.positions = np.zeros(capacity, np.int32)
        self.sequences = np.zeros(capacity, np.int32)
        self.outputs = np.zeros(capacity, np.int8)
        self._counts = np.ones(capacity, np.int32)
        step = self.sequences.itemsize
        self._pointers = self.sequences.ctypes.data + step * np.arange(capacity, dtype=np.uint64)
        self.handle = _c.llama_batch()
        for field, array, kind in (
            ("token", self.tokens, ctypes.c_int32),
            ("pos", self.positions, ctypes.c_int32),
            ("n_seq_id", self._counts, ctypes.c_int32),
            ("seq_id", self._pointers, ctypes.POINTER(ctypes.c_int32)),
            ("logits", self.outputs, ctypes.c_int8),
        ):
            setattr(self.handle, field, array.ctypes.data_as(ctypes.POINTER(kind)))

    def end(self, rows: int) -> Any:
        """What llama.cpp takes: the first `rows` of the arrays."""
        self.handle.n_tokens = rows
        return self.handle
