"""ggml's devices, which llama_cpp does not bind: asked of the same shared library.

Importing this module imports llama_cpp; asking for the devices starts the drivers of all that are
visible to this process.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

# It loads the library before anything of it is asked for by name.
from llama_cpp._ggml import libggml

from ...protocol.messages.devices import DeviceKind

_GPU_TYPES = (1, 2)
"""ggml's numbers for devices with memory of their own, and for those that use the host's."""

_CPU_TYPE = 0


class _Properties(ctypes.Structure):
    """`ggml_backend_dev_props`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("capabilities", ctypes.c_bool * 64),  # five today; room for what later versions add
    )


def _bind(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(libggml, name)
    function.restype = result
    function.argtypes = list(arguments)
    return function


_count = _bind("ggml_backend_dev_count", ctypes.c_size_t)
_get = _bind("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
_properties = _bind(
    "ggml_backend_dev_get_props", None, ctypes.c_void_p, ctypes.POINTER(_Properties)
)
_registry = _bind("ggml_backend_dev_backend_reg", ctypes.c_void_p, ctypes.c_void_p)
_registry_name = _bind("ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p)


@dataclass(frozen=True, slots=True)
class GgmlDevice:
    """A device as ggml sees it in this process."""

    handle: int
    """`ggml_backend_dev_t`."""
    name: str
    """ggml's, such as `CUDA0`: counted among the visible ones."""
    description: str
    kind: DeviceKind
    backend: str
    total: int
    free: int
    id: str
    """PCI bus id; empty where it has none."""


def visible_devices() -> list[GgmlDevice]:
    """The processors and all GPUs that this process sees, in ggml's order.

    What only helps the processors (a BLAS library, AMX) has no memory of its own and is left out.
    """
    devices: list[GgmlDevice] = []
    for index in range(_count()):
        handle = _get(index)
        properties = _Properties()
        _properties(handle, ctypes.byref(properties))
        if properties.type not in (_CPU_TYPE, *_GPU_TYPES):
            continue
        devices.append(
            GgmlDevice(
                handle,
                _text(properties.name),
                _text(properties.description),
                DeviceKind.CPU if properties.type == _CPU_TYPE else DeviceKind.GPU,
                _text(_registry_name(_registry(handle))),
                int(properties.memory_total),
                int(properties.memory_free),
                _text(properties.device_id).lower(),
            )
        )
    return devices


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")[:512]
