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
}
"""The parameters of a Modelfile that say how its model is loaded, all of them whole numbers."""


def context_for(facts: ModelFacts, asked: int | None, default: int) -> int:
    """Tokens of context that a replica needs for a request that asks for `asked`.

    Never more than the model was trained for.
    """
    wanted = asked or _parameter(facts, "num_ctx") or default
    return min(wanted, facts.context_length) if facts.context_length else wanted


def load_of(facts: ModelFacts, context_length: int, settings: Settings) -> Load:
    """What a worker is told so that it becomes a replica with so much context.

    A Modelfile lowers the number of threads and never raises it: what a worker may take from the
    others is the operator's to say.
    """
    parallel = _parameter(facts, "num_parallel")
    threads = _parameter(facts, "num_thread") or settings.threads
    return Load(
        model=facts,
        context_length=context_length,
        threads=min(threads, settings.threads),
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
