"""Where a model lies: the devices that a worker was given, as llama.cpp takes them.

llama.cpp is handed a list of devices, in the order of the shares, and never chooses itself: an
empty list keeps it on the processors, even where a device could not be hidden.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp

from ...protocol.errors import Code, PronkError
from ...protocol.host import free_memory
from ...protocol.messages.placement import Load, Share
from ..visibility import SIMULATED
from .ggml import GgmlDevice, visible_devices

_c: Any = llama_cpp  # its stubs describe what ctypes takes only in part


@dataclass(frozen=True, slots=True)
class Offload:
    """The devices that compute beside the processors, or in their place."""

    shares: tuple[Share, ...] = ()
    """All that was given, simulated devices included."""
    devices: tuple[GgmlDevice, ...] = ()
    """Those of them that exist, in the same order."""
    layers: int = 0
    """Layers that lie on them, the output layer included."""

    @property
    def real(self) -> bool:
        """Whether anything leaves the processors."""
        return bool(self.devices) and self.layers > 0

    def set_params(self, params: Any) -> list[Any]:
        """Fills a `llama_model_params`; what is returned must live as long as it is used."""
        devices = self.devices if self.real else ()
        handles = (ctypes.c_void_p * (len(devices) + 1))(*(device.handle for device in devices))
        portions = (ctypes.c_float * int(_c.llama_max_devices()))()
        for index, share in enumerate(self.shares if devices else ()):
            portions[index] = share.portion
        params.devices = ctypes.cast(handles, ctypes.c_void_p)
        params.tensor_split = ctypes.cast(portions, ctypes.POINTER(ctypes.c_float))
        params.n_gpu_layers = self.layers if devices else 0
        params.main_gpu = 0
        # The other mode refuses a main device that is not there, as where there is none at all.
        alone = len(devices) == 1
        params.split_mode = _c.LLAMA_SPLIT_MODE_NONE if alone else _c.LLAMA_SPLIT_MODE_LAYER
        return [handles, portions]

    def free_memory(self, layers: int) -> int:
        """Bytes that a model of so many layers can take where it is to lie."""
        host = free_memory()
        if not self.real or layers <= 0:
            return host
        part = min(self.layers / layers, 1.0)
        devices = sum(device.free for device in self.devices)
        return int(min(devices / part, host / (1 - part) if part < 1 else devices))


NOTHING = Offload()
"""All on the processors."""


def offload_of(load: Load) -> Offload:
    """The devices of `load`. Raises `PronkError` (LOAD_FAILED) when one of them is not there."""
    real = [share for share in load.shares if share.backend != SIMULATED]
    if not real:
        return Offload(tuple(load.shares), (), load.layers)
    if len(real) < len(load.shares) or len({share.backend for share in real}) > 1:
        raise PronkError(Code.LOAD_FAILED, "it was given devices that cannot compute together")
    visible = visible_devices()
    devices = tuple(_find(share, real, visible) for share in real)
    return Offload(tuple(real), devices, load.layers)


def _find(share: Share, shares: Sequence[Share], visible: list[GgmlDevice]) -> GgmlDevice:
    candidates = [device for device in visible if device.backend == share.backend]
    if share.id:
        by_id = [device for device in candidates if device.id == share.id]
        # Parts of one GPU share its bus id, and their places in the list tell them apart.
        namesakes = [other for other in shares if other.id == share.id]
        if len(by_id) >= len(namesakes):
            return by_id[namesakes.index(share)]
    else:
        for device in candidates:
            if device.name == share.device:
                return device
    raise PronkError(Code.LOAD_FAILED, f"the device {share.device} is not there any more")
