"""The scheduler with blank workers: what there is to compute on, and what a model would take.

Both are jobs of a blank worker, because both load llama.cpp, which takes hold of devices; the
worker exits after it, and the next blank one comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .failure import Failure
from .fields import Count, Flag, Label, RequestId
from .placement import Load


class DeviceKind(StrEnum):
    """What kind of device computes."""

    CPU = "cpu"
    """The host's processors and memory. There is exactly one."""
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class Device:
    """Something to compute on, with memory of its own."""

    name: Label
    """ggml's name, or the one that was declared: unique on its host."""
    kind: DeviceKind
    backend: Label
    """The part of ggml that computes there: `CUDA`, `Metal`, `Vulkan`, `CPU`. Devices of different
    backends never hold one model together."""
    total: Count
    """Bytes of memory."""
    free: Count
    """Bytes of it that nobody has taken."""
    id: Label = ""
    """What names the device to its driver whatever the order: a PCI bus id; empty where it has
    none."""
    description: Label = ""
    simulated: Flag = False
    """Declared for tests: it computes on the CPU and has as much memory as was declared."""


@dataclass(frozen=True, slots=True)
class Discover:
    """To a blank worker: which devices does ggml see here? It exits after its answer."""

    call: RequestId


@dataclass(frozen=True, slots=True)
class Discovered:
    """All devices that ggml sees, and the processors that this process may use."""

    call: RequestId
    devices: list[Device]
    cores: Count
    """Physical cores, or fewer where the process may not use all of them."""


@dataclass(frozen=True, slots=True)
class Measure:
    """To a blank worker: what would a replica loaded like this take? It exits after its answer."""

    call: RequestId
    load: Load


@dataclass(frozen=True, slots=True)
class Measured:
    """What a replica takes, in bytes: `weights + slots × slot + compute`."""

    call: RequestId
    weights: Count
    slot: Count
    """KV cache and recurrent state of one slot with its whole context."""
    slots: Count
    compute: Count
    """Buffers that hold what is computed in between, on each device that computes."""
    layers: Count
    """Layers, the output layer included: what can be spread over devices."""


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job could not be done."""

    call: RequestId
    failure: Failure


MESSAGES = (Discover, Discovered, Measure, Measured, JobFailed)
