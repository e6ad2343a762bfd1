"""With what a model is loaded: what a request asks for, else its Modelfile, else the settings.

Pure. What a Modelfile says may come from anywhere, so a value without a meaning counts as absent;
`unusable_parameters` tells of it for the log.
"""

from __future__ import annotations

from ...protocol.messages.library import ModelFacts
from ...protocol.messages.placement import Load
from ...protocol.settings import MOST_PARALLEL, Settings

_BOUNDS = {
    "num_ctx": (1, 2**24),
    "num_parallel": (0, MOST_PARALLEL),
    "num_batch": (1, 16384),
    "num_thread": (0, 1024),
    "num_gpu": (-1, 2**20),
    "main_gpu": (0, 4096),
}
"""The parameters of a Modelfile that say how its model is loaded, all of them whole numbers."""


def context_for(facts: ModelFacts, asked: int | None, default: int) -> int:
    """Tokens of context that a replica needs for a request that asks for `asked`.

    Never more than the model was trained for.
    """
    wanted = asked or _parameter(facts, "num_ctx") or default
    return min(wanted, facts.context_length) if facts.context_length else wanted


def layers_for(facts: ModelFacts, asked: int | None) -> int | None:
    """Layers to offload for a request that asks for `asked`; None for as many as fit."""
    wanted = _parameter(facts, "num_gpu") if asked is None else asked
    return None if wanted is None or wanted < 0 else wanted


def gpu_for(facts: ModelFacts, asked: int | None) -> int | None:
    """The GPU that a request prefers, counted from 0; None for any."""
    return _parameter(facts, "main_gpu") if asked is None else asked


def threads_for(facts: ModelFacts, most: int) -> int:
    """Threads that a replica may have where the operator allows `most`.

    A Modelfile lowers the number and never raises it: what a worker may take from the others is the
    operator's to say.
    """
    return min(_parameter(facts, "num_thread") or most, most)


def load_of(facts: ModelFacts, context_length: int, settings: Settings) -> Load:
    """What a worker is told so that it becomes a replica with so much context, on no device yet."""
    parallel = _parameter(facts, "num_parallel")
    return Load(
        model=facts,
        context_length=context_length,
        threads=threads_for(facts, settings.threads),
        parallel=settings.num_parallel if parallel is None else parallel,
        slot_memory=settings.slot_memory,
        cache_memory=settings.cache_memory,
        batch=_parameter(facts, "num_batch") or settings.num_batch,
        cache_type=settings.kv_cache_type,
        flash_attention=settings.flash_attention,
    )


def unusable_parameters(facts: ModelFacts) -> list[str]:
    """One line for each parameter of the Modelfile that is ignored here, for the log."""
    return [
        f"{name} is {str(facts.parameters[name])[:80]!r}, and no whole number of {low} to {high}"
        for name, (low, high) in _BOUNDS.items()
        if name in facts.parameters and _parameter(facts, name) is None
    ]


def _parameter(facts: ModelFacts, name: str) -> int | None:
    value = facts.parameters.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    low, high = _BOUNDS[name]
    return value if type(value) is int and low <= value <= high else None
