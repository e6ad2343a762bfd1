"""The KV caches of all slots, and the computation on them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp
import numpy as np

from ...protocol.messages.placement import CacheType, FlashAttention
from .batch import Batch, ImageBatch
from .llama import DecodeFailed, Model, context_params
from .pictures import Picture

_c: Any = llama_cpp  # its stubs describe what ctypes takes only in part

_CACHE_TYPES = {
    CacheType.F16: _c.GGML_TYPE_F16,
    CacheType.Q8_0: _c.GGML_TYPE_Q8_0,
    CacheType.Q4_0: _c.GGML_TYPE_Q4_0,
}
_FLASH_ATTENTION = {
    FlashAttention.AUTO: _c.LLAMA_FLASH_ATTN_TYPE_AUTO,
    FlashAttention.ON: _c.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    FlashAttention.OFF: _c.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}

Logits = np.ndarray[Any, np.dtype[np.float32]]
State = np.ndarray[Any, np.dtype[np.uint8]]


def set_cache(params: Any, cache_type: CacheType, flash_attention: FlashAttention) -> None:
    """Sets how a `llama_context_params` keeps keys and values, and computes with them."""
    params.type_k = params.type_v = _CACHE_TYPES[cache_type]
    params.flash_attn_type = _FLASH_ATTENTION[flash_attention]


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """How a context is made."""

    slots: int
    """Sequences that it holds at a time."""
    length: int
    """Tokens of context that each of them has."""
    threads: int
    batch: int = 512
    """Most tokens that one decode computes."""
    cache_type: CacheType = CacheType.F16
    flash_attention: FlashAttention = FlashAttention.AUTO


def plan_params(plan: ContextPlan, *, offloaded: bool) -> Any:
    """The `llama_context_params` of a context as planned."""
    params = context_params(plan.threads, offloaded=offloaded)
    params.n_ctx = plan.length * plan.slots
    params.n_batch = params.n_ubatch = plan.batch
    params.n_seq_max = plan.slots
    set_cache(params, plan.cache_type, plan.flash_attention)
    params.kv_unified = False
    return params


class Context:
    """`plan.slots` sequences, each known by its slot's number, from 0.

    A decode computes rows of several sequences at once. Between decodes, a slot's cache can be cut
    at its end, shifted, saved and restored: this is what prompts are reused with.

    Each slot has a stream of cells for itself. In the other mode of llama.cpp's cache, where all
    share one buffer, every row attends over what anybody holds before it is masked: at 16 slots of
    16 the two take the same time (12 M and 0.5 B, short texts), at 64 it takes 2.6 times as long, a
    prompt beside 15 others 1.4 times; and numbers that are none reach everybody. What it has ahead,
    that gaps between active slots cost nothing, the engine gets by closing them.
    """

    def __init__(self, model: Model, plan: ContextPlan) -> None:
        """Raises `PronkError` (LOAD_FAILED) when the memory does not suffice."""
        params = plan_params(plan, offloaded=model.offloaded)
        self.handle = model.new_context(params)
        self.plan = plan
        self.can_cut = not (
            _c.llama_model_is_recurrent(model.handle) or _c.llama_model_is_hybrid(model.handle)
        )
        """Whether the end of a sequence can be forgotten: a recurrent state knows no positions."""
        self._memory = _c.llama_get_memory(self.handle)
        self.can_shift = self.can_cut and bool(_c.llama_memory_can_shift(self._memory))
        """Whether the middle of a sequence can be forgotten."""
        self._vocabulary_size = model.vocabulary.size
        self._views: dict[tuple[int, int], Logits] = {}
        self._rows: dict[int, Logits] = {}
        self._batch = Batch(plan.batch)

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        outputs: Sequence[int],
    ) -> None:
        """Computes one row per token. `outputs` are the rows, ascending, whose logits are wanted.

        Rows of one slot are in the order of their positions. Raises `DecodeFailed`.
        """
        count, batch = len(tokens), self._batch
        batch.tokens[:count] = tokens
        batch.positions[:count] = positions
        batch.sequences[:count] = slots
        batch.outputs[:count] = 0
        batch.outputs[list(outputs)] = 1
        self._rows = {}
        status = _c.llama_decode(self.handle, batch.end(count))
        if status != 0:
            raise DecodeFailed(f"llama_decode returned {status}")
        if outputs:
            self._rows = dict(zip(outputs, self._all_logits(len(outputs)), strict=True))

    def look(
        self, picture: Picture, first: int, count: int, start: int, slot: int, *, output: bool
    ) -> None:
        """Computes `count` rows of an image from `first` on, which is to begin at position `start`.

        With `output`, the logits of row `count - 1` are wanted. Raises `DecodeFailed`.
        """
        numbers = picture.numbers[first : first + count]
        batch = ImageBatch(numbers, picture.positions(start, first, count), slot, output=output)
        self._rows = {}
        if picture.at_once:
            _c.llama_set_causal_attn(self.handle, False)
        try:
            status = _c.llama_decode(self.handle, batch.handle)
        finally:
            if picture.at_once:
                _c.llama_set_causal_attn(self.handle, True)
        if status != 0:
            raise DecodeFailed(f"llama_decode returned {status} for an image")
        if output:
            self._rows = {count - 1: self._all_logits(1)[0]}

    def _all_logits(self, count: int) -> Logits:
        pointer = _c.llama_get_logits(self.handle)
        if not pointer:
            raise DecodeFailed("there are no logits")
        address = ctypes.addressof(pointer.contents)
        view = self._views.get((address, count))
        if view is None:  # making a view takes longer than reading it
            if len(self._views) > 512:
                self._views.clear()
            view = np.ctypeslib.as_array(pointer, (count, self._vocabulary_size))
            self._views[address, count] = view
        return view

    def logits(self, row: int) -> Logits:
        """The logits of one of the last decode's `outputs`: a writable view until the next one."""
        return self._rows[row]

    def cut(self, slot: int, length: int) -> None:
        """Forgets what a slot holds from position `length` on; 0 forgets all, with any model."""
        _c.llama_memory_seq_rm(self._memory, slot, length or -1, -1)

    def shift(self, slot: int, keep: int, discard: int) -> None:
        """Forgets `discard` tokens behind the first `keep`, and moves what follows forward."""
        _c.llama_memory_seq_rm(self._memory, slot, keep, keep + discard)
        _c.llama_memory_seq_add(self._memory, slot, keep + discard, -1, -discard)

    def save(self, slot: int) -> State:
        """All that a slot holds, as bytes in this process's memory."""
        size = _c.llama_state_seq_get_size(self.handle, slot)
        state = np.empty(size, np.uint8)
        address = ctypes.cast(state.ctypes.data, ctypes.POINTER(ctypes.c_uint8))
        written = _c.llama_state_seq_get_data(self.handle, address, size, slot)
        return state[:written]

    def restore(self, slot: int, state: State) -> bool:
        """Makes a slot hold what was saved, from any slot. False, and an empty slot, on failure."""
        self.cut(slot, 0)
        address = ctypes.cast(state.ctypes.data, ctypes.POINTER(ctypes.c_uint8))
        if _c.llama_state_seq_set_data(self.handle, address, len(state), slot) == len(state):
            return True
        self.cut(slot, 0)
        return False

    def clear(self) -> None:
        """Forgets everything, and wipes the numbers, because NaN outlives a mask."""
        _c.llama_memory_clear(self._memory, True)

    def set_threads(self, threads: int) -> None:
        """Computes with so many threads from the next decode on."""
        _c.llama_set_n_threads(self.handle, threads, threads)

    def close(self) -> None:
        """Gives the memory back."""
        _c.llama_free(self.handle)
