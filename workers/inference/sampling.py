"""What the sampler of one answer does: options and defaults, brought within what has a meaning.

Pure: `samplers` carries it out. In the order request, Modelfile, GGUF file, Ollama's default: the
first three are merged by `defaults`, the last are those of `SamplingPlan`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.messages.generation import LogitBias, SamplingOptions

_GREEDY_BELOW = 1e-3
"""Temperatures under this mean greedy: dividing logits by less than that may overflow."""

_MASK = 2**64 - 1
_MAX_BIAS = 1e4
_INT32 = 2**31 - 1

BREAKERS = ("\n", ":", '"', "*")
"""Texts over which DRY does not look back, unless the request has others: llama.cpp's."""


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """What the sampler does, every value within the range that llama.cpp defines.

    Defaults are those of Ollama's server, where `repeat_penalty` is 1.0 (off) since August 2026
    (ollama/ollama#17679) and was 1.1 before; of what it does not have, those of llama.cpp's.
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
    top_n_sigma: float = 0.0
    """Standard deviations below the largest logit within which tokens are kept; 0 keeps all."""
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    """How far the temperature moves with the entropy, up and down."""
    dynatemp_exponent: float = 1.0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 0
    """Tokens that DRY looks back on."""
    dry_sequence_breakers: tuple[str, ...] = BREAKERS
    logit_bias: tuple[LogitBias, ...] = ()
    """Biases of None forbid."""
    ignore_eos: bool = False

    @property
    def greedy(self) -> bool:
        """Whether no chance is involved."""
        return self.temperature == 0.0 and self.dynatemp_range == 0.0

    @property
    def penalizes(self) -> bool:
        """Whether tokens that were there before change the choice by their presence."""
        off = (1.0, 0.0, 0.0)
        penalties = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty)
        return self.repeat_last_n > 0 and penalties != off

    @property
    def favours(self) -> bool:
        """Whether penalties may make a token likelier than it was."""
        return self.penalizes and (
            self.repeat_penalty < 1.0 or self.presence_penalty < 0.0 or self.frequency_penalty < 0.0
        )

    @property
    def dries(self) -> bool:
        """Whether tokens that would go on with a repetition are made less likely."""
        return self.dry_multiplier > 0.0 and self.dry_base >= 1.0 and self.dry_penalty_last_n > 0

    @property
    def looks_back(self) -> int:
        """Tokens before the next one that matter for its choice."""
        return max(
            self.repeat_last_n if self.penalizes else 0,
            self.dry_penalty_last_n if self.dries else 0,
        )


def plan_sampling(options: SamplingOptions, context_length: int) -> SamplingPlan:
    """The plan for a request's options. Values out of range are brought to the nearest sense."""
    default = SamplingPlan()
    temperature = _bounded(options.temperature, default.temperature, 0.0, 1e6)
    penalty = options.repeat_penalty
    breakers = options.dry_sequence_breakers
    return SamplingPlan(
        temperature=temperature if temperature >= _GREEDY_BELOW else 0.0,
        top_k=_whole(options.top_k, default.top_k, 0, _INT32),
        top_p=_bounded(options.top_p, default.top_p, 0.0, 1.0),
        min_p=_bounded(options.min_p, default.min_p, 0.0, 1.0),
        typical_p=_bounded(options.typical_p, default.typical_p, 0.0, 1.0),
        repeat_last_n=_reach(options.repeat_last_n, default.repeat_last_n, context_length),
        # A penalty divides: 0 and less have no meaning, and clients send 0 for "off".
        repeat_penalty=_bounded(
            penalty if penalty is None or penalty > 0 else 1.0, default.repeat_penalty, 0.01, 100.0
        ),
        presence_penalty=_bounded(options.presence_penalty, 0.0, -100.0, 100.0),
        frequency_penalty=_bounded(options.frequency_penalty, 0.0, -100.0, 100.0),
        top_n_sigma=_bounded(options.top_n_sigma, 0.0, 0.0, 1e6),
        xtc_probability=_bounded(options.xtc_probability, 0.0, 0.0, 1.0),
        xtc_threshold=_bounded(options.xtc_threshold, default.xtc_threshold, 0.0, 1.0),
        dynatemp_range=_bounded(options.dynatemp_range, 0.0, 0.0, 1e6),
        dynatemp_exponent=_bounded(options.dynatemp_exponent, 1.0, 0.0, 100.0),
        mirostat=options.mirostat if options.mirostat in (1, 2) else 0,
        mirostat_tau=_bounded(options.mirostat_tau, default.mirostat_tau, 0.0, 100.0),
        mirostat_eta=_bounded(options.mirostat_eta, default.mirostat_eta, 0.0, 1.0),
        dry_multiplier=_bounded(options.dry_multiplier, 0.0, 0.0, 1e4),
        dry_base=_bounded(options.dry_base, default.dry_base, 0.0, 1e4),
        dry_allowed_length=_whole(
            options.dry_allowed_length, default.dry_allowed_length, 0, _INT32
        ),
        dry_penalty_last_n=_reach(options.dry_penalty_last_n, -1, context_length),
        dry_sequence_breakers=BREAKERS if breakers is None else tuple(breakers),
        logit_bias=tuple(map(_bounded_bias, options.logit_bias or ())),
        ignore_eos=bool(options.ignore_eos),
    )


def _bounded(value: float | None, default: float, low: float, high: float) -> float:
    return default if value is None else min(max(value, low), high)


def _whole(value: int | None, default: int, low: int, high: int) -> int:
    return default if value is None else min(max(value, low), high)


def _reach(value: int | None, default: int, context_length: int) -> int:
    last_n = default if value is None else value
    return context_length if last_n < 0 else min(last_n, context_length)


def _bounded_bias(entry: LogitBias) -> LogitBias:
    if entry.bias is None:
        return entry
    return LogitBias(entry.token, min(max(entry.bias, -_MAX_BIAS), _MAX_BIAS))


def draw(seed: int, position: int, *, purpose: int = 0) -> float:
    """A number from 0 up to 1 for the choice at `position` of an answer: of these alone, so that
    another process can continue the answer with the same draws. `purpose` tells apart several
    draws at one position, below 256. Mixed by SplitMix64's finalizer.
    """
    mixed = ((seed << 32 | position) ^ purpose << 56) + 0x9E3779B97F4A7C15 & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return ((mixed ^ mixed >> 31) >> 11) / (1 << 53)
