"""What a replica would take, before it is loaded.

A blank worker measures it (`Measure`), and what a replica really took corrects that. Measuring
costs a worker's life and a few tenths of a second, so it is done where something depends on the
answer: where there are devices to choose from, or where a model may not fit. On a host with
processors alone, a model that clearly fits is guessed from the size of its file and loaded at once.
No I/O.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..protocol.messages.devices import Measured
from ..protocol.messages.fleet import LoadedModel
from ..protocol.messages.placement import CacheType, Load, Share
from .devices import CPU, Devices
from .policies.resources import Footprint

_log = logging.getLogger(__name__)

_CLEARLY = 2
"""A guess that fits so many times over needs no measuring."""

_ALL_LAYERS = 100_000
"""More than any model has."""

_INTEREST_SECONDS = 5.0
"""How long nobody asks before a measurement is no longer wanted: waiting requests ask every second.
"""

_MOST_KNOWN = 4096
"""Whoever asks for ever new lengths of context must not fill this process's memory."""

_MOST_SLOTS = 16
_BYTES_PER_TOKEN = 2**15
"""A file has so many times the bytes of one token's keys and values in f16; a large model has more,
which errs on the safe side."""

_CACHE_SHARE = {CacheType.F16: 1.0, CacheType.Q8_0: 0.55, CacheType.Q4_0: 0.3}
_LARGEST_GUESSED_COMPUTE = 512 * 2**20
_GUESSED_LAYERS = 33

Key = tuple[object, ...]
"""All of a `Load` that what it takes depends on."""


@dataclass(slots=True)
class Footprints:
    """What replicas take, by all that it depends on."""

    devices: Devices
    clock: Callable[[], float] = time.monotonic
    _known: dict[Key, Footprint] = field(default_factory=dict[Key, Footprint])
    _asked: dict[Key, tuple[Load, float]] = field(default_factory=dict[Key, tuple[Load, float]])
    """What is to be measured, and when it was last asked for."""
    _measuring: Key | None = None

    def of(self, load: Load) -> Footprint | None:
        """What a replica takes that is loaded so; None while that is being found out.

        A `load` without devices is one that is still to be placed.
        """
        probe = self._placed(load)
        key = _key(probe)
        if known := self._known.get(key):
            return known
        guessed = self.guess(load)
        if not self.devices.accelerators and self._clearly_fits(guessed):
            return guessed
        self._asked[key] = (probe, self.clock())
        return None

    def wanted(self) -> Load | None:
        """What should be measured next; None while something is, or nobody asks."""
        if self._measuring:
            return None
        oldest = self.clock() - _INTEREST_SECONDS
        self._asked = {key: entry for key, entry in self._asked.items() if entry[1] >= oldest}
        return next((load for load, _ in self._asked.values()), None)

    def on_measuring(self, load: Load) -> None:
        """A worker was told to measure it."""
        self._measuring = _key(load)

    def on_measured(self, load: Load, answer: Measured) -> None:
        """A worker has told what it takes."""
        self._settle(
            load,
            Footprint(
                answer.weights, answer.slot, max(answer.slots, 1), answer.compute, answer.layers
            ),
        )

    def on_failed(self, load: Load, reason: str) -> None:
        """It could not be told, so it is guessed: loading it will show what is wrong."""
        _log.warning("%s could not be measured: %s", load.model.name, reason)
        self._settle(load, self.guess(load))

    def _settle(self, load: Load, footprint: Footprint) -> None:
        key = _key(load)
        self._remember(key, footprint)
        self._asked.pop(key, None)
        if self._measuring == key:
            self._measuring = None

    def on_loaded(self, load: Load, model: LoadedModel) -> None:
        """A replica is loaded: what it took is the truth about all that are loaded so."""
        key = _key(load)
        before = self._known.get(key)
        if before and model.size_vram:
            self._remember(key, corrected_on_devices(before, load, model))
        else:
            self._remember(key, corrected(before or self.guess(load), load, model, bool(before)))

    def _remember(self, key: Key, footprint: Footprint) -> None:
        self._known[key] = footprint
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def guess(self, load: Load) -> Footprint:
        """What it may take, by the size of the file alone: rather too much than too little."""
        size = max(load.model.size, 1)
        cells = -(-max(load.context_length, 1) // 256) * 256
        token = size / _BYTES_PER_TOKEN * _CACHE_SHARE[load.cache_type]
        slot = int(cells * token)
        room = load.slot_memory or self.devices.host.free // 4
        slots = load.parallel or max(1, min(_MOST_SLOTS, room // max(slot, 1)))
        compute = min(size // 2, _LARGEST_GUESSED_COMPUTE) + 8 * 2**20
        return Footprint(size, slot, slots, compute, _GUESSED_LAYERS)

    def _clearly_fits(self, guessed: Footprint) -> bool:
        return guessed.total * _CLEARLY <= self.devices.host.free

    def _placed(self, load: Load) -> Load:
        """`load` on a device of the kind that it will probably lie on, where it has none yet."""
        accelerators = self.devices.accelerators
        if load.shares or not accelerators:
            return load
        device = max(accelerators, key=lambda device: device.total)
        share = Share(device.name, device.id, device.backend, 1.0)
        return replace(load, shares=[share], layers=_ALL_LAYERS)


def bytes_by_device(footprint: Footprint, load: Load) -> dict[str, int]:
    """What a replica takes of each device that `load` gives it, and of the host."""
    layers = max(footprint.layers, 1)
    spread = footprint.weights + footprint.slots * footprint.slot
    portions = sum(share.portion for share in load.shares)
    away = min(load.layers, layers) if portions > 0 else 0
    sizes = {
        share.device: int(spread * away / layers * share.portion / portions) + footprint.compute
        for share in load.shares
        if away
    }
    if away < layers:
        sizes[CPU] = int(spread * (layers - away) / layers) + footprint.compute
    return sizes


def corrected(expected: Footprint, load: Load, model: LoadedModel, measured: bool) -> Footprint:
    """The footprint of a replica in the host's memory that has taken what `model` says.

    What it took beside the weights is split into slots and buffers as it was expected; what nobody
    expected counts as buffers.
    """
    taken = max(model.size, model.resident)
    slots = max(model.slots, 1)
    weights = min(expected.weights if measured else load.model.size, taken)
    rest = taken - weights
    slot, compute = expected.slot, rest - slots * expected.slot
    if compute < 0 or not measured:
        compute = min(expected.compute, rest // 2)
        slot = (rest - compute) // slots
    return replace(expected, weights=weights, slot=slot, slots=slots, compute=compute)


def corrected_on_devices(expected: Footprint, load: Load, model: LoadedModel) -> Footprint:
    """The footprint of a replica on devices: with buffers so large that none of them holds more
    than is expected, as where its last layer is the largest.
    """
    expected = replace(expected, slots=max(model.slots, 1))
    sizes = bytes_by_device(expected, load)
    excess = [
        part.size - sizes[part.device]
        for part in model.placed
        if part.device in sizes and part.device != CPU
    ]
    return replace(expected, compute=max(0, expected.compute + max(excess, default=0)))


def _key(load: Load) -> Key:
    return (
        load.model.digest,
        load.context_length,
        load.parallel,
        load.slot_memory,
        load.batch,
        load.cache_type,
        load.flash_attention,
        load.shares[0].backend if load.shares else "",
        len(load.shares),
    )
