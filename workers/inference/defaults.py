"""What a model brings along of options: the parameters of its Modelfile, and its file's metadata.

Nobody who sends a request wrote them, so nothing of them ever fails it: what has no meaning is left
out, with a line in the log.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping
from typing import Any

from ...protocol.messages.generation import SamplingOptions
from .stop import MAX_STOP_CHARACTERS

_log = logging.getLogger(__name__)

_INT64 = 2**63 - 1
_MAX_CHARACTERS = {"stop": MAX_STOP_CHARACTERS, "dry_sequence_breakers": 128}
"""Of all texts together; more could cost a request more than its model does."""
_MAX_TEXTS = {"stop": 128, "dry_sequence_breakers": 16}

METADATA = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.xtc_probability": "xtc_probability",
    "general.sampling.xtc_threshold": "xtc_threshold",
    "general.sampling.penalty_last_n": "repeat_last_n",
    "general.sampling.penalty_repeat": "repeat_penalty",
    "general.sampling.mirostat": "mirostat",
    "general.sampling.mirostat_tau": "mirostat_tau",
    "general.sampling.mirostat_eta": "mirostat_eta",
}
"""Keys of a GGUF file that recommend options, and the options' names."""

_LOOKS_BACK = ("repeat_last_n", "dry_penalty_last_n", "num_keep")
_WHOLE = ("top_k", "mirostat", "dry_allowed_length", "num_predict", *_LOOKS_BACK)
_TEXTS = ("stop", "dry_sequence_breakers")
_FLAGS = ("ignore_eos",)
_NUMBERS = frozenset(
    field.name
    for field in dataclasses.fields(SamplingOptions)
    if field.name not in (*_WHOLE, *_TEXTS, *_FLAGS, "logit_bias")
)
_OF_LOADING = frozenset(
    {
        *("num_ctx", "num_batch", "num_thread", "num_parallel", "num_gpu", "main_gpu", "seed"),
        *("use_mmap", "use_mlock", "numa", "low_vram", "f16_kv", "tfs_z", "penalize_newline"),
        *("logits_all", "vocab_only", "embedding_only"),
    }
)
"""Parameters of a Modelfile that are no options of sampling."""


def model_options(parameters: Mapping[str, Any], metadata: Mapping[str, str]) -> SamplingOptions:
    """The options that a model sets: in its Modelfile, else in its file's metadata, as texts."""
    given: dict[str, Any] = {}
    for key, name in METADATA.items():
        if key in metadata:
            _take(given, name, metadata[key], f"the model's {key}")
    for name, value in parameters.items():
        if name not in _OF_LOADING:
            _take(given, name, value, f"the Modelfile's {name}")
    return SamplingOptions(**given)


def model_seed(parameters: Mapping[str, Any]) -> int | None:
    """The seed that a Modelfile sets, in 32 bits as a request's; None for a random one."""
    value = parameters.get("seed")
    if value is None:
        return None
    try:
        number = _number(value)
        if not number.is_integer():
            raise ValueError
    except (ValueError, OverflowError):
        _log.warning("the Modelfile's seed is ignored: %.80r means nothing here", value)
        return None
    whole = value if isinstance(value, int) else int(number)
    return None if whole < 0 else whole & 0xFFFFFFFF


def merged(request: SamplingOptions, model: SamplingOptions) -> SamplingOptions:
    """The request's options, and the model's where the request has none."""
    if model == _NOTHING:
        return request
    return SamplingOptions(
        **{
            field.name: getattr(model, field.name) if value is None else value
            for field in dataclasses.fields(SamplingOptions)
            for value in (getattr(request, field.name),)
        }
    )


_NOTHING = SamplingOptions()


def _take(given: dict[str, Any], name: str, value: Any, whose: str) -> None:
    try:
        given[name] = _meaning(name, value)
    except (ValueError, OverflowError):
        _log.warning("%.80s is ignored: %.80r means nothing here", whose, value)


def _meaning(name: str, value: Any) -> Any:
    """The value of an option. Raises `ValueError` when it has none."""
    if name in _TEXTS:
        return _texts(value, _MAX_TEXTS[name], _MAX_CHARACTERS[name])
    if name in _FLAGS:
        if isinstance(value, bool):
            return value
    elif name in _WHOLE:
        number = _number(value)
        if number.is_integer() and abs(number) < _INT64:
            return max(int(number), -1) if name in _LOOKS_BACK else int(number)
    elif name in _NUMBERS:
        return _number(value)
    raise ValueError


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _texts(value: Any, most: int, characters: int) -> list[str]:
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError
    if len(texts) > most or sum(map(len, texts)) > characters:
        raise ValueError
    return [text for text in texts if text]
