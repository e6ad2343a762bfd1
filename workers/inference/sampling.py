"""Sampling settings: Ollama's defaults, bounded so that llama.cpp takes every one of them."""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.messages.generation import SamplingOptions

_GREEDY_BELOW = 1e-3
"""Temperatures under this mean greedy: dividing logits by less than that may overflow."""

_MASK = 2**64 - 1
_RANDOM_SEED = 2**32 - 1
"""The seed that llama.cpp replaces by a random one."""


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """What the sampler does, every value within the range that llama.cpp defines.

    Defaults are those of Ollama's server, where `repeat_penalty` is 1.0 (off) since August 2026
    (ollama/ollama#17679) and was 1.1 before.
    """

    temperature: float = 0.8
    """0 takes the likeliest token, always."""
    top_k: int = 40
    """0 keeps all tokens."""
    top_p: float = 0.9
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_last_n: int = 64
    """Tokens that the penalties look back on."""
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @property
    def greedy(self) -> bool:
        """Whether no chance is involved."""
        return self.temperature == 0.0

    @property
    def penalizes(self) -> bool:
        """Whether tokens that were there before change the choice."""
        off = (1.0, 0.0, 0.0)
        penalties = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty)
        return self.repeat_last_n > 0 and penalties != off


def plan_sampling(options: SamplingOptions, context_length: int) -> SamplingPlan:
    """The plan for a request's options. Values out of range are brought to the nearest sense."""
    default = SamplingPlan()
    temperature = _bounded(options.temperature, default.temperature, 0.0, 1e6)
    last_n = default.repeat_last_n if options.repeat_last_n is None else options.repeat_last_n
    penalty = options.repeat_penalty
    return SamplingPlan(
        temperature=temperature if temperature >= _GREEDY_BELOW else 0.0,
        top_k=min(max(default.top_k if options.top_k is None else options.top_k, 0), 2**31 - 1),
        top_p=_bounded(options.top_p, default.top_p, 0.0, 1.0),
        min_p=_bounded(options.min_p, default.min_p, 0.0, 1.0),
        typical_p=_bounded(options.typical_p, default.typical_p, 0.0, 1.0),
        repeat_last_n=context_length if last_n < 0 else min(last_n, context_length),
        # A penalty divides: 0 and less have no meaning, and clients send 0 for "off".
        repeat_penalty=_bounded(
            penalty if penalty is None or penalty > 0 else 1.0, default.repeat_penalty, 0.01, 100.0
        ),
        presence_penalty=_bounded(options.presence_penalty, 0.0, -100.0, 100.0),
        frequency_penalty=_bounded(options.frequency_penalty, 0.0, -100.0, 100.0),
    )


def _bounded(value: float | None, default: float, low: float, high: float) -> float:
    return default if value is None else min(max(value, low), high)


def draw_seed(seed: int, position: int) -> int:
    """The seed of the draw at `position` of an answer: of these two alone, so that another process
    can continue the answer with the same draws. 32 bits, mixed by SplitMix64's finalizer.
    """
    mixed = ((seed << 32 | position) + 0x9E3779B97F4A7C15) & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    drawn = (mixed ^ mixed >> 31) & 0xFFFFFFFF
    return drawn if drawn != _RANDOM_SEED else 0
