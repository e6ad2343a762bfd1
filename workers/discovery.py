"""What there is to compute on: a blank worker's first kind of job."""

from __future__ import annotations

from dataclasses import replace

from ..protocol.errors import Code, PronkError
from ..protocol.host import cores, free_memory, total_memory
from ..protocol.messages.devices import Device, DeviceKind, Discovered


def discover(call: str) -> Discovered:
    """All devices that ggml sees, with the processors first, and the cores that may be used.

    Starts the drivers of all devices: for a process that exits after it. Raises `PronkError`
    (INTERNAL) when llama.cpp cannot be loaded, or tells of things that no device can be.
    """
    try:
        from .inference.ggml import visible_devices
    except (ImportError, OSError, AttributeError, RuntimeError) as error:
        raise PronkError(Code.INTERNAL, f"llama.cpp cannot be loaded: {error}") from None
    devices: list[Device] = []
    for found in visible_devices():
        device = Device(
            name=found.name or f"{found.backend}{len(devices)}",
            kind=found.kind,
            backend=found.backend,
            total=found.total,
            free=min(found.free, found.total),
            id=found.id,
            description=found.description,
        )
        if device.kind is DeviceKind.CPU:
            if devices and devices[0].kind is DeviceKind.CPU:
                continue  # the host has one memory, however many backends compute in it
            # ggml knows nothing of what a container may have.
            devices.insert(0, replace(device, total=total_memory(), free=free_memory()))
        elif device.total:
            devices.append(device)
    return Discovered(call, _distinct(devices), cores())


def _distinct(devices: list[Device]) -> list[Device]:
    """The devices, each once: two backends may see the same GPU, and the first one has it."""
    seen: set[str] = set()
    distinct: list[Device] = []
    for device in devices:
        if device.name in seen or (device.id and device.id in seen):
            continue
        seen.update(filter(None, (device.name, device.id)))
        distinct.append(device)
    return distinct
