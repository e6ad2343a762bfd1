"""How many requests a model can answer at a time in the memory that there is. Pure but for the log.

What a slot takes is the KV cache of a whole context, and the state of recurrent layers, which no
context makes larger. `footprint` measures both.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ...protocol.errors import Code, PronkError
from ...protocol.messages.placement import CacheType, Load

_log = logging.getLogger(__name__)

MOST_AUTOMATIC = 16
"""Slots beyond which an automatic number does not go: more of them, and each answer is slow."""

AUTOMATIC_SHARE = 0.25
"""Of the free memory, for the slots of one model among several: how many come is not known."""

USABLE_SHARE = 0.9
"""Of the free memory, for slots that were asked for: the rest is for what computing takes."""

_CELLS = 256
"""llama.cpp rounds the length of a context up to a multiple of it."""

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a model needs to remember what it has read."""

    cache_type: CacheType
    """In which the model can keep it."""
    token: float
    """Bytes of KV cache for each token of a context."""
    sequence: int
    """Bytes of state for each sequence, however long it is."""

    def slot(self, context_length: int) -> int:
        """Bytes that a slot with this context takes."""
        cells = -(-context_length // _CELLS) * _CELLS
        return int(cells * self.token) + self.sequence


def automatic_slots(slot: int, memory: int) -> int:
    """How many slots of `slot` bytes each a model gets in `memory` bytes: at least one."""
    return max(1, min(MOST_AUTOMATIC, memory // max(slot, 1)))


def slots_for(load: Load, footprint: Footprint, context_length: int, free: int) -> int:
    """The number of slots for a model that is being loaded, with `free` bytes of memory.

    Raises `PronkError` (LOAD_FAILED) where not even one context fits.
    """
    slot = footprint.slot(context_length)
    # Mapped weights count as free for as long as nobody has read them.
    free = max(0, free - load.model.size)
    if slot > free:
        raise PronkError(
            Code.LOAD_FAILED,
            f"a context of {context_length} tokens takes {slot / _GIB:.1f} GiB beside the weights, "
            f"and {free / _GIB:.1f} GiB of memory are free; use a smaller num_ctx",
        )
    if not load.parallel:
        return automatic_slots(slot, load.slot_memory or int(free * AUTOMATIC_SHARE))
    fitting = max(1, int(free * USABLE_SHARE) // max(slot, 1))
    if fitting < load.parallel:
        _log.warning(
            "%s: %d requests at a time take %.1f GiB with a context of %d, and %.1f GiB are free: "
            "it takes %d",
            load.model.name,
            load.parallel,
            load.parallel * slot / _GIB,
            context_length,
            free / _GIB,
            fitting,
        )
    return min(load.parallel, fitting)
