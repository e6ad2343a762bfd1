"""How a model is loaded: what `Load` asks for, within what the model and the memory allow.

A replica and a dry run follow the same plan, so that what one takes is what the other foretells.
"""

from __future__ import annotations

from ...protocol.host import usable_threads
from ...protocol.messages.placement import Load
from .batching import GRID
from .capacity import slots_for
from .context import ContextPlan
from .footprint import measure
from .llama import Model


def context_length(model: Model, load: Load) -> int:
    """Tokens of context that each slot has: never more than the model was trained for."""
    return min(load.context_length, model.trained_context or load.context_length)


def plan_context(model: Model, load: Load) -> ContextPlan:
    """The context of a model that writes text.

    Raises `PronkError` (LOAD_FAILED) where not even one slot fits.
    """
    length = context_length(model, load)
    footprint = measure(model, load)
    slots = slots_for(load, footprint, length, model.offload.free_memory(model.layers))
    return ContextPlan(
        slots=slots,
        length=length,
        threads=usable_threads(load.threads),
        batch=max(load.batch, slots + GRID),
        cache_type=footprint.cache_type,
        flash_attention=load.flash_attention,
    )
