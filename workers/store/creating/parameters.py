"""The parameters of a Modelfile: their names and types, in which Ollama writes them down."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ....protocol.errors import Code, PronkError

_WHOLE = (
    *("num_ctx", "num_batch", "num_thread", "num_parallel", "num_gpu", "main_gpu", "num_keep"),
    *("num_predict", "draft_num_predict", "seed", "top_k", "repeat_last_n", "mirostat"),
    *("dry_allowed_length", "dry_penalty_last_n", "num_gqa"),
)
_NUMBERS = (
    *("temperature", "top_p", "min_p", "typical_p", "tfs_z", "top_n_sigma"),
    *("repeat_penalty", "presence_penalty", "frequency_penalty", "mirostat_tau", "mirostat_eta"),
    *("dry_multiplier", "dry_base", "xtc_probability", "xtc_threshold"),
    *("dynatemp_range", "dynatemp_exponent", "rope_frequency_base", "rope_frequency_scale"),
)
_FLAGS = (
    *("use_mmap", "use_mlock", "numa", "low_vram", "f16_kv", "ignore_eos", "penalize_newline"),
    *("logits_all", "vocab_only", "embedding_only"),
)
_TEXTS = ("stop", "dry_sequence_breakers")

_INT64 = 2**63 - 1
_MAX_TEXTS = 128
_MAX_CHARACTERS = 16 * 1024
"""Of all texts of one parameter, which is what a worker takes."""
_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("0", "f", "F", "FALSE", "false", "False")


def typed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that a request gives, each as what it is: a number may have come as a text.

    None stands for one that is to be taken away. Raises `PronkError` (invalid_request) that names
    the parameter and what may stand there.
    """
    values: dict[str, Any] = {}
    for name, given in parameters.items():
        read = _KINDS.get(name)
        if read is None:
            raise PronkError(
                Code.INVALID_REQUEST,
                f"parameters: there is no parameter {name[:64]!a}; docs/options.md lists them",
            )
        try:
            values[name] = None if given is None else read(given)
        except ValueError as error:
            raise PronkError(
                Code.INVALID_REQUEST, f"parameters: {name} {error}; this is {str(given)[:64]!a}"
            ) from None
    return values


def parameter_names() -> list[str]:
    """Every parameter that can be set."""
    return sorted(_KINDS)


def merged(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A model's parameters with others in their place, in the order in which Ollama has them."""
    both = {**base, **given}
    return {name: both[name] for name in sorted(both) if both[name] not in (None, [])}


def _whole(given: Any) -> int:
    value = _number(given, "must be an integer of at most 64 bits")
    if int(value) != value:
        raise ValueError("must be an integer of at most 64 bits")
    return int(value)


def _number(given: Any, words: str = "must be a number") -> int | float:
    value = given
    if isinstance(given, str) and "_" not in given:  # which Python would take for a number
        try:
            value = int(given)
        except ValueError:
            try:
                value = float(given)
            except ValueError:
                raise ValueError(words) from None
    # Compared first: an integer may be too large to be anything else.
    if type(value) not in (int, float) or not abs(value) <= _INT64 or not math.isfinite(value):
        raise ValueError(words)
    return value


def _flag(given: Any) -> bool:
    if isinstance(given, bool):
        return given
    if given in _TRUE:
        return True
    if given in _FALSE:
        return False
    raise ValueError("must be true or false")


def _texts(given: Any) -> list[str]:
    texts: Any = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("must be a text or a list of texts")
    if len(texts) > _MAX_TEXTS or sum(map(len, texts)) > _MAX_CHARACTERS:
        raise ValueError(
            f"must be at most {_MAX_TEXTS} texts, of {_MAX_CHARACTERS} characters in all"
        )
    return [text for text in texts if text]


_KINDS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_WHOLE, _whole),
    **dict.fromkeys(_NUMBERS, _number),
    **dict.fromkeys(_FLAGS, _flag),
    **dict.fromkeys(_TEXTS, _texts),
}
