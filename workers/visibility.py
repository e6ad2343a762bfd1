"""Which devices this process will see, decided before llama.cpp and the GPU runtimes start.

A runtime takes hold of every device that it sees, on CUDA some hundred megabytes of each. What
hides devices are environment variables that it reads once, when it starts. They name devices by
what no other order of enumeration can change; what nothing names is left visible, and only the
choice among llama.cpp's own devices (`inference.offload`) keeps the model from it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..protocol.messages.placement import Share

_log = logging.getLogger(__name__)

SIMULATED = "simulated"
"""The backend of a device that was declared for tests, and computes on the CPU."""

_NVIDIA = Path("/proc/driver/nvidia/gpus")
_AMD = Path("/sys/class/kfd/kfd/topology/nodes")

_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_UUID = re.compile(r"GPU UUID:\s*(GPU-[0-9a-fA-F-]+)")


@dataclass(frozen=True, slots=True)
class Drivers:
    """Where the kernel's drivers say what their devices are called."""

    nvidia: Path = _NVIDIA
    amd: Path = _AMD
    present: dict[str, str] = field(default_factory=dict[str, str])
    """The environment as it is: what an operator has restricted stays restricted."""


def choose_devices(shares: Sequence[Share]) -> None:
    """Makes exactly the devices of `shares` visible to this process, as far as that is possible.

    To be called before llama_cpp is imported, and once in a process's life.
    """
    variables = visibility(shares, Drivers(present=dict(os.environ)))
    if shares:
        _log.info("visible devices: %s", variables)
    os.environ.update(variables)


def visibility(shares: Sequence[Share], drivers: Drivers) -> dict[str, str]:
    """The variables that show the devices of `shares`, in their order, and hide all others."""
    variables = {
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "",
        "ROCR_VISIBLE_DEVICES": "",
        "GGML_VK_VISIBLE_DEVICES": "",
    }
    ids = [share.id for share in shares if share.backend != SIMULATED]
    backends = {share.backend for share in shares if share.backend != SIMULATED}
    if "CUDA" in backends:
        del variables["CUDA_VISIBLE_DEVICES"]
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        # A part of a GPU has the bus id of the whole: only the operator's name tells it apart.
        partitioned = "MIG-" in drivers.present.get("CUDA_VISIBLE_DEVICES", "")
        names = [_nvidia_uuid(id, drivers.nvidia) for id in ids]
        if all(names) and not partitioned:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(filter(None, names))
    if "ROCm" in backends:
        # What the lower layer shows is counted anew by the upper one, so that one suffices. HIP
        # takes CUDA's variable for its own.
        for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
            variables.pop(name, None)
        names = [_amd_name(id, drivers.amd) for id in ids]
        restricted = any(
            drivers.present.get(name) for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
        )
        if all(names) and not restricted:
            variables["ROCR_VISIBLE_DEVICES"] = ",".join(filter(None, names))
    if "Vulkan" in backends:
        # It takes hold of a device only when that is used, and counts devices in an order that
        # its names do not tell.
        del variables["GGML_VK_VISIBLE_DEVICES"]
    return variables


def _nvidia_uuid(pci: str, gpus: Path) -> str | None:
    """CUDA's lasting name for the GPU with this bus id."""
    if not _BUS_ID.fullmatch(pci):
        return None
    with contextlib.suppress(OSError):
        if match := _UUID.search((gpus / pci / "information").read_text()):
            return match[1]
    return None


def _amd_name(pci: str, nodes: Path) -> str | None:
    """ROCr's name for the GPU with this bus id: its UUID, or its number where it has none."""
    with contextlib.suppress(OSError, ValueError):
        number = 0
        for node in sorted(nodes.iterdir(), key=lambda path: int(path.name)):
            lines = (line.split() for line in (node / "properties").read_text().splitlines())
            properties = {line[0]: int(line[1]) for line in lines if len(line) == 2}
            if not properties.get("simd_count"):
                continue  # a processor
            if _pci_of(properties) == pci:
                unique = properties.get("unique_id")
                return f"GPU-{unique:016x}" if unique else str(number)
            number += 1
    return None


def _pci_of(properties: dict[str, int]) -> str:
    place = properties.get("location_id", 0)
    domain = properties.get("domain", 0)
    return f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7:x}"
