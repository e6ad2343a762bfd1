"""What a loaded model needs to remember, asked of llama.cpp itself.

A small context is made and thrown away, which takes some milliseconds, and llama.cpp's log says
what it took. No formula over layers and heads holds for all architectures: sliding windows,
compressed and recurrent attention each have their own. It also shows whether the model can have
the cache type that was asked for, before anything depends on it.
"""

from __future__ import annotations

import logging
from typing import Any

import llama_cpp

from ...protocol.messages.placement import CacheType, FlashAttention, Load
from .capacity import Footprint
from .context import set_cache
from .llama import Model, context_params, native_log

_c: Any = llama_cpp

_log = logging.getLogger(__name__)

_PROBE = 256
"""Tokens of the context that is made for measuring."""


def measure(model: Model, load: Load) -> Footprint:
    """The model's footprint with the cache type of `load`, or with f16 where it can have no other.

    Raises `PronkError` (LOAD_FAILED) with llama.cpp's reason where no context can be made.
    """
    if load.cache_type is not CacheType.F16:
        with native_log.apart():
            if footprint := _probe(model, load.cache_type, load.flash_attention):
                return footprint
            _log.warning(
                "%s: its KV cache cannot be %s and is f16: %s",
                load.model.name,
                load.cache_type,
                model.load_error().message,
            )
    with native_log.apart():
        if footprint := _probe(model, CacheType.F16, load.flash_attention):
            return footprint
        raise model.load_error()


def _probe(
    model: Model, cache_type: CacheType, flash_attention: FlashAttention
) -> Footprint | None:
    params = context_params(1, offloaded=model.offloaded)
    params.n_ctx = params.n_batch = params.n_ubatch = _PROBE
    params.n_seq_max = 1
    set_cache(params, cache_type, flash_attention)
    context = _c.llama_init_from_model(model.handle, params)
    if not context:
        return None
    _c.llama_free(context)
    return Footprint(
        cache_type,
        token=native_log.remembered("KV") / _PROBE,
        sequence=native_log.remembered("RS"),
    )
