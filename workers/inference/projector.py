"""Which of a model's files it sees by, and what that takes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .llama import Model, native_log

if TYPE_CHECKING:
    from .sight import Sight

_log = logging.getLogger(__name__)


def load_sight(
    model: Model, projectors: Sequence[Path], threads: int, *, offloaded: bool = True
) -> Sight | None:
    """The sight of a model; None for one that has none, such as one whose projector is for sounds.

    It lies on the first of the model's devices, if it may be `offloaded`. Raises `PronkError`
    (LOAD_FAILED) where a projector cannot be loaded.
    """
    if not model.generates:
        return None
    if not projectors:
        return None
    from .sight import Blind, Sight  # most models are blind, and it takes its time

    device = model.offload.devices[0].handle if offloaded and model.offload.real else None
    for path in projectors:
        try:
            return Sight(model, path, threads, device=device)
        except Blind:
            _log.warning("one of the model's projectors is not for images, and is not used")
    return None


def measure_sight(model: Model, projectors: Sequence[Path]) -> tuple[int, int]:
    """Bytes of the weights by which a model sees, and of what it computes with.

    llama.cpp does not tell that before it has loaded the projector, which this does on the
    processors. Raises `PronkError` (LOAD_FAILED) where it cannot be loaded.
    """
    with native_log.apart():
        sight = load_sight(model, projectors, 1, offloaded=False)
        if sight is None:
            return 0, 0
        weights, compute = native_log.on_devices("model"), native_log.on_devices("compute")
        sight.close()
    return sum(weights.values()), sum(compute.values())
