"""The `options` of a request: names and meanings as in Ollama, wrong values refused by name.

What Ollama accepts is accepted: null is absence, numbers beyond what a thing can be are brought
down to it (`num_ctx`, `top_k`), and settings of the memory, which is the server's affair here,
change nothing. What has no meaning is refused with the values that have one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from ....protocol.messages.generation import LogitBias, SamplingOptions
from ...operations.offload import Offload

_log = logging.getLogger(__name__)

_INT64 = 2**63 - 1
_MAX_CONTEXT = 2**24
_MOST_LAYERS = 2**20
_MAX_NAMES_LOGGED = 256

MAX_STOPS = 128
MAX_STOP = 1024
"""Characters of one stop text."""
MAX_STOP_CHARACTERS = 16 * 1024
"""Characters of all stop texts together."""
MAX_BREAKERS = 16
MAX_BREAKER_BYTES = 40
"""Of one DRY sequence breaker in UTF-8; llama.cpp would cut a longer one."""
MAX_BREAKERS_BYTES = 128
"""Of all of them: each is looked for in every token of the vocabulary."""
MAX_BIASES = 1024
MAX_BIASED_TEXT = 128
"""Characters of a text whose tokens get a bias."""


def _integer(low: int, high: int | None = None) -> BeforeValidator:
    """Integers from `low` on. JSON has one kind of number: 40.0 is as good as 40."""
    if high is not None:
        return _integral(low, high, f"must be an integer from {low} to {high}")
    words = "" if low == -_INT64 else f" from {low} on"
    return _integral(low, _INT64, f"must be an integer{words}, of at most 64 bits")


def _integral(low: int, high: int, words: str) -> BeforeValidator:
    def check(value: object) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            raise ValueError(words)
        return value

    return BeforeValidator(check)


def _number(low: float, high: float) -> BeforeValidator:
    def check(value: object) -> float:
        if type(value) not in (int, float) or not low <= value <= high:  # type: ignore[operator]
            raise ValueError(f"must be a number from {low:g} to {high:g}")
        return float(value)  # type: ignore[arg-type]

    return BeforeValidator(check)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _texts(
    value: object, sizes: str, most: int, fits: Callable[[str], bool], total: Callable[[str], int]
) -> list[str]:
    """A text or a list of texts, within bounds that `sizes` tells in words."""
    texts: Any = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        raise ValueError("must be a text or a list of texts")
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"must be a text or a list of texts; the one at {place} is none")
    if len(texts) > most or not all(map(fits, texts)) or total("".join(texts)) < 0:
        given = f"these are {len(texts)}, the longest with {max(map(len, texts))} characters"
        raise ValueError(f"must be {sizes}; {given}")
    return [text for text in texts if text]


def _stops(value: object) -> list[str]:
    """Stop texts. An empty one, which would match at once, is none."""
    return _texts(
        value,
        f"at most {MAX_STOPS} texts of at most {MAX_STOP} characters, together at most "
        f"{MAX_STOP_CHARACTERS}",
        MAX_STOPS,
        lambda text: len(text) <= MAX_STOP,
        lambda joined: MAX_STOP_CHARACTERS - len(joined),
    )


def _breakers(value: object) -> list[str]:
    return _texts(
        value,
        f"at most {MAX_BREAKERS} texts of at most {MAX_BREAKER_BYTES} bytes, together at most "
        f"{MAX_BREAKERS_BYTES}",
        MAX_BREAKERS,
        lambda text: _bytes(text) <= MAX_BREAKER_BYTES,
        lambda joined: MAX_BREAKERS_BYTES - _bytes(joined),
    )


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _biases(value: object) -> list[LogitBias]:
    """llama-server's forms: pairs of a token's id or a text with its bias, or an object of them,
    whose keys that are whole numbers are ids. A bias of false forbids the token.
    """
    if isinstance(value, dict):
        pairs: list[Any] = [[_id_or_text(key), bias] for key, bias in value.items()]
    elif isinstance(value, list):
        pairs = value
    else:
        raise ValueError('must be an object such as {"42": -1.5} or a list such as [[42, -1.5]]')
    if len(pairs) > MAX_BIASES:
        raise ValueError(f"must have at most {MAX_BIASES} entries; these are {len(pairs)}")
    return [_bias(pair, place) for place, pair in enumerate(pairs)]


def _id_or_text(key: str) -> int | str:
    return int(key) if key.isascii() and key.isdigit() and len(key) <= 10 else key


def _bias(pair: object, place: int) -> LogitBias:
    match pair:
        case [token, bias]:
            pass
        case _:
            raise ValueError(f"[{place}] must be a token and its bias, such as [42, -1.5]")
    if type(token) is int and 0 <= token < 2**31:
        pass
    elif not isinstance(token, str) or len(token) > MAX_BIASED_TEXT:
        raise ValueError(
            f"[{place}] must name a token by its id or by a text of at most {MAX_BIASED_TEXT} "
            "characters"
        )
    if bias is False:
        return LogitBias(token, None)
    if type(bias) not in (int, float) or not math.isfinite(bias):
        raise ValueError(f"[{place}] must have a number as its bias, or false to forbid the token")
    return LogitBias(token, float(bias))


def _wish(number: int | None) -> int | None:
    return None if number is None or number < 0 else min(number, _MOST_LAYERS)


_Fraction = Annotated[float, _number(0, 1)]
_Penalty = Annotated[float, _number(-100, 100)]
_Count = Annotated[int, _integer(0)]
_LookBack = Annotated[int, _integer(-1)]
_Any = Annotated[int, _integer(-_INT64)]
_Flag = Annotated[bool, BeforeValidator(_flag)]


class Options(BaseModel):
    """All options with a meaning, here or in Ollama. Null is the same as absence."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    num_ctx: Annotated[int, _integer(1)] | None = None
    num_keep: _Any | None = None
    num_predict: Annotated[int, _integer(-2)] | None = None
    seed: _Any | None = None
    num_gpu: _Any | None = None
    main_gpu: _Any | None = None
    stop: Annotated[list[str], BeforeValidator(_stops)] | None = None

    temperature: Annotated[float, _number(0, 1000)] | None = None
    top_k: Annotated[int, _integer(-1)] | None = None
    top_p: _Fraction | None = None
    min_p: _Fraction | None = None
    typical_p: _Fraction | None = None
    top_n_sigma: Annotated[float, _number(-1, 1000)] | None = None
    xtc_probability: _Fraction | None = None
    xtc_threshold: _Fraction | None = None
    dynatemp_range: Annotated[float, _number(0, 1000)] | None = None
    dynatemp_exponent: Annotated[float, _number(0, 100)] | None = None
    mirostat: Annotated[int, _integer(0, 2)] | None = None
    mirostat_tau: Annotated[float, _number(0, 100)] | None = None
    mirostat_eta: _Fraction | None = None

    repeat_last_n: _LookBack | None = None
    repeat_penalty: Annotated[float, _number(0, 100)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    dry_multiplier: Annotated[float, _number(0, 1000)] | None = None
    dry_base: Annotated[float, _number(0, 1000)] | None = None
    dry_allowed_length: _Count | None = None
    dry_penalty_last_n: _LookBack | None = None
    dry_sequence_breakers: Annotated[list[str], BeforeValidator(_breakers)] | None = None
    logit_bias: Annotated[list[LogitBias], BeforeValidator(_biases)] | None = None
    ignore_eos: _Flag | None = None

    # Without effect: `WITHOUT_EFFECT`.
    num_batch: _Any | None = None
    num_thread: _Any | None = None
    use_mmap: _Flag | None = None
    use_mlock: _Flag | None = None
    numa: _Flag | None = None
    low_vram: _Flag | None = None
    f16_kv: _Flag | None = None
    logits_all: _Flag | None = None
    vocab_only: _Flag | None = None
    embedding_only: _Flag | None = None
    tfs_z: Annotated[float, _number(-1e9, 1e9)] | None = None
    penalize_newline: _Flag | None = None

    @property
    def context_length(self) -> int | None:
        """Tokens of context; more than any model has is as good as that many."""
        return None if self.num_ctx is None else min(self.num_ctx, _MAX_CONTEXT)

    @property
    def offload(self) -> Offload:
        """What is wanted of the GPUs: negative numbers leave it to the server."""
        return Offload(_wish(self.num_gpu), _wish(self.main_gpu))

    def sampling(self) -> SamplingOptions:
        """What the worker gets."""
        return SamplingOptions(
            **{name: getattr(self, name) for name in _COPIED},
            num_keep=None if self.num_keep is None else max(self.num_keep, -1),
        )


WITHOUT_EFFECT = {
    **dict.fromkeys(
        ("use_mmap", "use_mlock", "numa", "low_vram", "f16_kv"),
        "memory is the server's affair",
    ),
    **dict.fromkeys(("num_batch", "num_thread"), "they are set for a model, not for a request"),
    **dict.fromkeys(
        ("tfs_z", "penalize_newline", "logits_all", "vocab_only", "embedding_only"),
        "it is deprecated",
    ),
}
"""Options of Ollama that are accepted and change nothing, and why."""

_COPIED = tuple(name for name in SamplingOptions.__dataclass_fields__ if name != "num_keep")

_logged: set[str] = set()


def log_ignored(names: object) -> None:
    """Writes one line for each option without effect, the first time that it is seen."""
    if not isinstance(names, dict):
        return
    for name in names:
        if len(_logged) >= _MAX_NAMES_LOGGED:
            return
        without_effect = name in WITHOUT_EFFECT or name not in Options.model_fields
        if without_effect and name not in _logged:
            _logged.add(name)
            reason = WITHOUT_EFFECT.get(name, "there is no such option")
            _log.info("option %.64r has no effect here: %s", name, reason)
