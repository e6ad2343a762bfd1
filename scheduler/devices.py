"""The devices of this host, and what is left of each.

What a device has left is what it reports, less what was promised to workers that are still loading
and so is in no report yet. Where nothing reports (a simulated device, a GPU without NVML) it is all
that was there, less all that was promised or taken. No I/O but small readings of the host's memory
in `refresh`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..protocol import host
from ..protocol.host import free_memory, total_memory
from ..protocol.messages.devices import Device, DeviceKind, Discovered
from ..protocol.messages.fleet import LoadedModel
from ..protocol.settings import Settings
from .policies.resources import DeviceView

_log = logging.getLogger(__name__)

CPU = "CPU"
"""The name of the processors with the host's memory, which are always there."""

SIMULATED = "simulated"
"""The backend of declared devices."""

_ATTEMPTS = 2
"""Tries at discovering before the processors are all that counts."""

_CONTEXT = 512 * 2**20
"""Bytes that a process takes of each GPU whose runtime it starts, beside its model: what CUDA takes
on a large one. NVML's readings show the true number once it runs."""

_WITH_CONTEXT = ("CUDA", "ROCm", "MUSA")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a device's driver reports of it now."""

    free: int
    utilization: float | None = None
    """The part of the last moments in which it computed, 0 to 1."""
    temperature: float | None = None
    """Degrees Celsius."""


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """A device for those who watch it."""

    view: DeviceView
    ours: int
    """Bytes that our workers have taken of it or were promised."""
    others: int | None
    """Bytes that other people's processes have taken; None where nothing tells."""
    utilization: float | None = None
    temperature: float | None = None


@dataclass(slots=True)
class _Claim:
    """What one worker takes."""

    sizes: dict[str, int]
    """Bytes by device."""
    resident: int = 0
    """Bytes of the host's memory of it that readings show; the rest are mapped files."""
    settled: int | None = None
    """The number of the reading of which it can first be a part; None while it is loading."""
    known_at_discovery: bool = False


@dataclass(slots=True)
class _Known:
    """A device with the last that was read of it."""

    device: Device
    reading: Reading | None = None
    read: int = 0
    """The number of that reading."""
    claims: dict[str, _Claim] = field(default_factory=dict[str, _Claim])
    """What workers take of it, among other things."""
    view: DeviceView | None = None
    """None when something has changed since it was last asked for."""


@dataclass(slots=True)
class Devices:
    """All devices of this host. What it says is as fresh as its last `refresh`."""

    settings: Settings
    cores: int = field(default_factory=host.cores)
    """Physical cores that may be used."""
    _claims: dict[str, _Claim] = field(default_factory=dict[str, _Claim])
    _known: dict[str, _Known] = field(default_factory=dict[str, _Known])
    _turn: int = 0
    _failures: int = 0
    _asking: bool = False
    known: bool = False
    """Whether it is settled which devices there are."""

    def __post_init__(self) -> None:
        self._add(Device(CPU, DeviceKind.CPU, CPU, total_memory(), free_memory()))
        for declared in self.settings.declared_devices:
            size = declared.memory
            self._add(Device(declared.name, DeviceKind.GPU, SIMULATED, size, size, simulated=True))
        self.known = bool(self.settings.declared_devices)
        self.refresh()

    def _add(self, device: Device) -> None:
        self._known[device.name] = _Known(device)

    # What there is

    def views(self) -> list[DeviceView]:
        """All devices with what is left of them, the processors last."""
        views = [known.view or self._view(known) for known in self._known.values()]
        return [*views[1:], views[0]]

    @property
    def host(self) -> DeviceView:
        """The processors and the host's memory."""
        known = self._known[CPU]
        return known.view or self._view(known)

    @property
    def accelerators(self) -> list[Device]:
        """All devices but the processors."""
        return [known.device for known in self._known.values() if known.device.name != CPU]

    def statuses(self) -> list[DeviceStatus]:
        """All devices for those who watch them."""
        return [self._status(known) for known in self._known.values()]

    def _view(self, known: _Known) -> DeviceView:
        device = known.device
        reserve = 0 if device.kind is DeviceKind.CPU else self.settings.gpu_overhead
        known.view = DeviceView(
            name=device.name,
            kind=device.kind,
            backend=device.backend,
            total=device.total,
            free=min(max(0, self._free(known) - reserve), device.total),
            id=device.id,
            simulated=device.simulated,
        )
        return known.view

    def _status(self, known: _Known) -> DeviceStatus:
        name, reading = known.device.name, known.reading
        ours = sum(self._taken(known, claim) for claim in known.claims.values())
        others = None
        if reading:
            shown = sum(
                claim.resident if name == CPU else self._taken(known, claim)
                for claim in known.claims.values()
                if self._shows(known, claim)
            )
            others = max(0, known.device.total - reading.free - shown)
        return DeviceStatus(
            self._view(known),
            ours,
            others,
            reading.utilization if reading else None,
            reading.temperature if reading else None,
        )

    # What is left

    def _free(self, known: _Known) -> int:
        claims, name = known.claims.values(), known.device.name
        if known.reading is None:
            # What was taken when the devices were counted is missing there already.
            return known.device.free - sum(
                self._taken(known, claim) for claim in claims if not claim.known_at_discovery
            )
        free = known.reading.free - (self._context(known) if name != CPU else 0)
        for claim in claims:
            if not self._shows(known, claim):
                free -= self._taken(known, claim)
            elif name == CPU:
                # Pages of a mapped file count as free, and are needed all the same.
                free -= max(0, claim.sizes.get(CPU, 0) - claim.resident)
        return free

    def _shows(self, known: _Known, claim: _Claim) -> bool:
        """Whether the last reading has what the worker took."""
        return claim.settled is not None and known.read >= claim.settled

    def _taken(self, known: _Known, claim: _Claim) -> int:
        size = claim.sizes.get(known.device.name, 0)
        return size + self._context(known) if size else 0

    def _context(self, known: _Known) -> int:
        return _CONTEXT if known.device.backend in _WITH_CONTEXT else 0

    # Who takes what

    def promise(self, worker: str, sizes: Mapping[str, int]) -> None:
        """A worker was told to load what takes these bytes of these devices."""
        self._claim(worker, _Claim({name: size for name, size in sizes.items() if size > 0}))

    def settle(self, worker: str, model: LoadedModel) -> None:
        """A worker has loaded its model: what it took counts, whatever it was promised."""
        sizes = {part.device: part.size for part in model.placed} or {CPU: model.size}
        # What the engine keeps beside llama.cpp's buffers is its own as well.
        sizes[CPU] = max(sizes.get(CPU, 0), model.resident)
        self._claim(worker, _Claim(sizes, model.resident, self._turn + 1))

    def release(self, worker: str) -> None:
        """A worker is gone, and what it had is free."""
        for known in self._touched(self._claims.pop(worker, None)):
            claim = known.claims.pop(worker)
            if claim.known_at_discovery and known.reading is None:
                back = self._taken(known, claim)
                free = min(known.device.total, known.device.free + back)
                known.device = replace(known.device, free=free)

    def _claim(self, worker: str, claim: _Claim) -> None:
        self.release(worker)
        self._claims[worker] = claim
        for known in self._touched(claim):
            known.claims[worker] = claim

    def _touched(self, claim: _Claim | None) -> list[_Known]:
        names = claim.sizes if claim else ()
        touched = [self._known[name] for name in names if name in self._known]
        for known in touched:
            known.view = None
        return touched

    # What changes by itself

    def refresh(self) -> None:
        """Reads what is left of the host's memory. Called every second."""
        self._turn += 1
        known = self._known[CPU]
        known.reading, known.read, known.view = Reading(free_memory()), self._turn, None

    def on_readings(self, readings: Mapping[str, Reading], began: int) -> None:
        """Takes what drivers report, by PCI bus id. `began` is `turn` when they were asked."""
        for known in self._known.values():
            if reading := readings.get(known.device.id):
                known.reading, known.read, known.view = reading, began, None

    @property
    def turn(self) -> int:
        """Counts the looks at the host."""
        return self._turn

    # Discovery

    @property
    def needs_discovery(self) -> bool:
        """Whether a blank worker should be asked now which devices there are."""
        return not self.known and not self._asking

    def on_discovering(self) -> None:
        """A worker was asked."""
        self._asking = True

    def on_discovered(self, answer: Discovered) -> None:
        """A worker has told which devices there are."""
        self._asking, self.known = False, True
        self.cores = max(1, answer.cores)
        for device in answer.devices:
            if device.kind is not DeviceKind.CPU and device.name != CPU:
                self._add(device)
        for worker, claim in self._claims.items():
            # What has begun since may be missing in what was counted, or not.
            claim.known_at_discovery = claim.settled is not None
            for known in self._touched(claim):
                known.claims[worker] = claim
        for view in self.views():
            _log.info(
                "device %s (%s): %.1f GiB, %.1f GiB free",
                view.name,
                view.backend,
                view.total / 2**30,
                view.free / 2**30,
            )

    def on_discovery_failed(self, reason: str) -> None:
        """It could not be told: after the second time the processors are all that there is."""
        self._asking = False
        self._failures += 1
        self.known = self._failures >= _ATTEMPTS
        if self.known:
            _log.error("no GPU is used until the next start, they cannot be counted: %s", reason)
        else:
            _log.warning("the devices cannot be counted, and are tried again: %s", reason)

    def watched_ids(self) -> Iterable[str]:
        """The bus ids of the GPUs that NVML may know."""
        return [known.device.id for known in self._known.values() if known.device.backend == "CUDA"]
