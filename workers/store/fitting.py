"""Cuts answers that would not fit in one message, and says what was cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import msgpack

from ...protocol.codec import MAX_HEADER, encode
from ...protocol.errors import Code, PronkError
from ...protocol.messages.library import ModelList, ModelShown

OMITTED = "pronk.omitted"
"""Key of `model_info` that lists the arrays that were too large for a verbose answer."""

_pack: Callable[[Any], bytes] = cast(Any, msgpack).packb


def fitted_list(answer: ModelList) -> ModelList:
    """The list, without as many of its last models as have to go."""
    while len(encode(answer)) > MAX_HEADER:
        kept = answer.models[: len(answer.models) * 3 // 4]
        answer = dataclasses.replace(answer, models=kept)
    return answer


def fitted(shown: ModelShown, name: str) -> ModelShown:
    """The answer, without its largest arrays where they would not fit in one message.

    Raises `PronkError` (too_large) when that is not enough.
    """
    excess = len(encode(shown)) - MAX_HEADER
    if excess <= 0:
        return shown
    info = dict(shown.model_info)
    sizes = {key: len(_pack(value)) for key, value in info.items() if isinstance(value, list)}
    omitted: list[str] = list(info.pop(OMITTED, ()))
    for key in sorted(sizes, key=lambda key: -sizes[key]):
        info[key] = None
        omitted.append(key)
        excess -= sizes[key]
        cut = dataclasses.replace(shown, model_info=info | {OMITTED: omitted})
        if excess <= 0 and len(encode(cut)) <= MAX_HEADER:
            return cut
    raise PronkError(
        Code.TOO_LARGE,
        f"what there is to show of model '{name}' is over the limit of "
        f"{MAX_HEADER // 1024**2} MiB for one answer; ask without verbose",
    )
