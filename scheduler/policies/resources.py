"""What policies see of devices and of what models take. Plain data, in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.messages.devices import DeviceKind


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device with what is left of it."""

    name: str
    kind: DeviceKind
    backend: str
    total: int
    free: int
    """Bytes that a new replica may take: what nobody has taken or was promised, less the reserve
    that the operator keeps."""
    id: str = ""
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a replica takes: known before it is loaded, corrected by what it really took."""

    weights: int
    slot: int
    """One slot's KV cache and recurrent state."""
    slots: int
    compute: int
    """Buffers on each device that computes."""
    layers: int
    """Layers, the output layer included, that weights and slots are spread over."""

    @property
    def total(self) -> int:
        """All of it on one device."""
        return self.weights + self.slots * self.slot + self.compute
