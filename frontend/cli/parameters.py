"""Parameters of models as people write them, turned into the types that the API has."""

from __future__ import annotations

import difflib
import math

Value = bool | int | float | str | list[str]

_KINDS: dict[str, type] = {
    **dict.fromkeys(("stop", "dry_sequence_breakers"), list),
    **dict.fromkeys(
        (
            *("num_ctx", "num_keep", "num_predict", "draft_num_predict", "num_batch"),
            *("num_gpu", "main_gpu"),
            *("num_thread", "num_parallel", "seed", "top_k", "repeat_last_n", "mirostat"),
            *("dry_allowed_length", "dry_penalty_last_n", "num_gqa"),
        ),
        int,
    ),
    **dict.fromkeys(
        (
            *("temperature", "top_p", "min_p", "typical_p", "tfs_z", "top_n_sigma"),
            *("repeat_penalty", "presence_penalty", "frequency_penalty"),
            *("mirostat_tau", "mirostat_eta", "xtc_probability", "xtc_threshold"),
            *("dynatemp_range", "dynatemp_exponent", "dry_multiplier", "dry_base"),
            *("rope_frequency_base", "rope_frequency_scale"),
        ),
        float,
    ),
    **dict.fromkeys(
        (
            *("use_mmap", "use_mlock", "numa", "low_vram", "f16_kv", "ignore_eos"),
            *("penalize_newline", "logits_all", "vocab_only", "embedding_only"),
        ),
        bool,
    ),
}

_TRUTH = {
    **dict.fromkeys(("1", "t", "true"), True),
    **dict.fromkeys(("0", "f", "false"), False),
}
_INT64 = 2**63


def add_parameter(parameters: dict[str, Value], name: str, text: str) -> None:
    """Sets a parameter from one line. Texts of a list are added to those that are there.

    Raises ValueError with a reason that completes the sentence "PARAMETER <name> …".
    """
    name = name.lower()
    kind = _KINDS.get(name)
    if kind is None:
        near = difflib.get_close_matches(name[:40], _KINDS, 1)
        raise ValueError("is no parameter" + (f"; is {near[0]} meant?" if near else ""))
    if kind is not list:
        parameters[name] = _read(kind, text.strip())
        return
    texts = parameters.setdefault(name, [])
    assert isinstance(texts, list)
    texts.append(text)


def names() -> list[str]:
    """Every parameter that can be set."""
    return sorted(_KINDS)


def is_list(name: str) -> bool:
    """Whether a parameter has several texts."""
    return _KINDS.get(name.lower()) is list


def _read(kind: type, text: str) -> Value:
    if kind is bool:
        if (truth := _TRUTH.get(text.lower())) is None:
            raise ValueError(f"must be true or false, and not {text[:40]!a}")
        return truth
    try:
        number = float(text)
        if not math.isfinite(number) or "_" in text:
            raise ValueError
        if kind is float:
            return number
        whole = int(text) if text.lstrip("+-").isdecimal() else int(number)
    except ValueError:
        wanted = "a number" if kind is float else "an integer"
        raise ValueError(f"must be {wanted}, and not {text[:40]!a}") from None
    if whole != number and abs(number) < 2**53:
        raise ValueError(f"must be an integer, and not {text[:40]!a}")
    if not -_INT64 <= whole < _INT64:
        raise ValueError("is too large")
    return whole
