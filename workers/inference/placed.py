"""Where a loaded model's memory lies, by llama.cpp's own account."""

from __future__ import annotations

from ...protocol.messages.fleet import Placed
from .native_log import HOST, NativeLog
from .offload import Offload


def placed(log: NativeLog, offload: Offload, layers: int) -> list[Placed]:
    """The bytes on each device of `offload`, and those in the host's memory.

    A simulated device holds nothing: it is said to hold what a real one would of a model with so
    many `layers`, and its host that much less.
    """
    sizes = log.on_devices()
    if offload.real:
        held = {
            share.device: sizes.pop(device.name, 0)
            for share, device in zip(offload.shares, offload.devices, strict=True)
        }
    else:
        moved = sum(sizes.values()) * min(offload.layers / max(layers, 1), 1.0)
        portions = sum(share.portion for share in offload.shares)
        held = {
            share.device: int(moved * share.portion / portions)
            for share in offload.shares
            if portions > 0
        }
        sizes = {HOST: sum(sizes.values()) - sum(held.values())}
    held[HOST] = sum(sizes.values())
    return [Placed(device, size) for device, size in held.items()]
