"""What a request wants of the GPUs, where its model has to be loaded for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offload:
    """Wishes of one request; None for what the model or the server says."""

    num_gpu: int | None = None
    """Layers to offload at most; more than there are is as good as all."""
    main_gpu: int | None = None
    """The GPU to prefer, counted from 0."""


NO_WISH = Offload()
