"""A `llama_batch` whose arrays are numpy's, so that filling it is an assignment of lists."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
import numpy as np

from .pictures import Numbers, Places

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


class ImageBatch:
    """Rows of one image for one decode. It must live until that is done."""

    def __init__(self, numbers: Numbers, positions: Places, slot: int, *, output: bool) -> None:
        """`output` says whether the last row's output is wanted."""
        rows = len(numbers)
        self._numbers = np.ascontiguousarray(numbers, np.float32)
        self._positions = np.ascontiguousarray(positions, np.int32)
        self._sequences = np.full(rows, slot, np.int32)
        self._counts = np.ones(rows, np.int32)
        step = self._sequences.itemsize
        self._pointers = self._sequences.ctypes.data + step * np.arange(rows, dtype=np.uint64)
        self._outputs = np.zeros(rows, np.int8)
        self._outputs[-1] = output
        self.handle = _c.llama_batch()
        self.handle.n_tokens = rows
        for field, array, kind in (
            ("embd", self._numbers, ctypes.c_float),
            ("pos", self._positions, ctypes.c_int32),
            ("n_seq_id", self._counts, ctypes.c_int32),
            ("seq_id", self._pointers, ctypes.POINTER(ctypes.c_int32)),
            ("logits", self._outputs, ctypes.c_int8),
        ):
            setattr(self.handle, field, array.ctypes.data_as(ctypes.POINTER(kind)))
