"""Simulated devices, as an operator or a test declares them in `PRONK_DEVICES`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, cast

from .sizes import parse_size

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MOST = 4096
_LARGEST = 2**60


@dataclass(frozen=True, slots=True)
class DeclaredDevice:
    """A device that computes on the CPU, and has as much memory as is said."""

    name: str
    memory: int
    """Bytes."""


def canonical(value: object) -> str:
    """The declaration as JSON of one form, empty where nothing is declared.

    Takes JSON text, or the list that a TOML file holds. Raises `ValueError` with what is wrong.
    """
    if isinstance(value, str):
        if not value.strip():
            return ""
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError(
                'is not JSON; write a list such as [{"name":"sim0","memory":"8GiB"}]'
            ) from None
    if not isinstance(value, list):
        raise ValueError('is no list; write one such as [{"name":"sim0","memory":"8GiB"}]')
    entries = cast(list[Any], value)
    if len(entries) > _MOST:
        raise ValueError(f"declares more than {_MOST} devices")
    devices = [_device(entry) for entry in entries]
    names = [device.name for device in devices]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"declares the device {name} twice")
    if not devices:
        return ""
    plain = [{"name": device.name, "memory": device.memory} for device in devices]
    return json.dumps(plain, separators=(",", ":"))


def declared(text: str) -> list[DeclaredDevice]:
    """The devices in what `canonical` made."""
    return [_device(entry) for entry in json.loads(text)] if text else []


def _device(entry: object) -> DeclaredDevice:
    if not isinstance(entry, dict):
        raise ValueError('declares a device that is no object with "name" and "memory"')
    fields = cast(dict[str, Any], entry)
    if unknown := sorted(map(str, fields.keys() - {"name", "memory"})):
        raise ValueError(f'knows no "{unknown[0][:40]}"; a device has "name" and "memory"')
    name, memory = fields.get("name"), fields.get("memory")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError('needs a "name" for each device: letters, digits, - _ and .')
    if name.upper() == "CPU":
        raise ValueError("declares a device called CPU, which is always there")
    try:
        size = parse_size(memory)
    except ValueError as error:
        raise ValueError(f"says of {name} that its memory {error}") from None
    if type(size) is not int or not 0 < size <= _LARGEST:
        raise ValueError(f'needs "memory" for {name}: bytes, or a size such as "8GiB"')
    return DeclaredDevice(name, size)
