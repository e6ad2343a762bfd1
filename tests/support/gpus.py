"""The GPUs of this host, as a blank worker's discovery tells of them in a process of its own."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any

import pytest

from pronk.protocol.messages.devices import Device, DeviceKind
from pronk.protocol.messages.placement import Share

_DISCOVER = """
import dataclasses, json
from pronk.workers.discovery import discover
print(json.dumps([dataclasses.asdict(device) for device in discover("a" * 32).devices]))
"""


def discovered() -> list[Device]:
    """All devices, with what is free of them now."""
    output = subprocess.check_output([sys.executable, "-c", _DISCOVER], text=True, timeout=120)
    entries: list[dict[str, Any]] = json.loads(output.splitlines()[-1])
    return [Device(**entry | {"kind": DeviceKind(entry["kind"])}) for entry in entries]


@functools.cache
def _gpus() -> tuple[Device, ...]:
    gpus = [device for device in discovered() if device.kind is DeviceKind.GPU]
    return tuple(device for device in gpus if device.backend == gpus[0].backend)


def gpus(least: int = 1) -> list[Device]:
    """The GPUs of the first backend that has any. Skips the test where there are fewer."""
    found = list(_gpus())
    if len(found) < least:
        count = f"{len(found)} of {least}" if found else "no"
        pytest.skip(f"llama.cpp finds {count} GPUs here (none is there, or it was built without)")
    return found


def share_of(gpu: Device, portion: float = 1.0) -> Share:
    return Share(gpu.name, gpu.id, gpu.backend, portion)
