"""Where a replica lies: on one device, over several, partly or wholly on the CPU. Pure.

A model's layers are taken as equally large, and each layer's part of the KV cache lies beside it.
So what is offloaded is a number of layers, and a device holds as many as fit beside the buffers in
which it computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...protocol.messages.devices import DeviceKind
from ...protocol.messages.placement import Share
from .resources import DeviceView, Footprint

GIB = 2**30

ENOUGH_SLOTS = 0.25
"""Part of the wanted slots for which one device is better than several that hold them all: work
that is split waits for its slowest part in every step."""


HALF = 0.5
"""Part of the slots that a replica would have on an empty host for the sake of which idle ones have
to go."""

NEARLY = 0.9
"""Part of the layers that GPUs would hold if they were empty with which a model is content that
would not fit on them anyhow. One that would fit waits for room: a few layers on the CPU make all of
it slow."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a replica lies, and what it takes there."""

    shares: tuple[Share, ...]
    """The main device first. A portion is a number of layers, so that llama.cpp's rounding has
    nothing to round; empty for the CPU alone."""
    layers: int
    """Layers on those devices; the others stay on the CPU."""
    slots: int
    taken: Mapping[str, int]
    """Bytes on each device."""
    cores: bool
    """Whether any of it computes on the processor's cores."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a request, a Modelfile or the operator wants of a placement."""

    num_gpu: int | None = None
    """Layers to offload at most; None for all."""
    main_gpu: int | None = None
    """The GPU to prefer, counted from 0 in the order of discovery."""
    spread: bool = False
    """Whether to use all GPUs even where one would do."""
    only: tuple[str, ...] = ()
    """The only devices to use; empty for all."""
    avoid: frozenset[str] = frozenset()
    """Devices not to use."""


NO_WISHES = Wishes()
_NO_WORK: Mapping[str, int] = {}


def place(
    devices: Sequence[DeviceView],
    footprint: Footprint,
    wishes: Wishes = NO_WISHES,
    *,
    free: Mapping[str, int] | None = None,
    busy: Mapping[str, int] = _NO_WORK,
) -> Placement | None:
    """The best placement in the memory that is free; None where there is none.

    On one GPU, among those with the least work the one that it fills best; else over the fewest of
    one backend that hold it; else with the layers that do not fit on the CPU; else on the CPU.
    Fewer slots than `footprint` has are taken where that many do not fit. `free` replaces what the
    devices say; `busy` counts the replicas that work on each.
    """
    room = _Room(devices, footprint, wishes, free, busy)
    wanted = footprint.layers if wishes.num_gpu is None else min(wishes.num_gpu, footprint.layers)
    if not room.gpus or wanted <= 0:
        return room.on_cpu()
    if not wishes.spread:
        for slots in _fewer(footprint.slots, ENOUGH_SLOTS):
            if placement := room.on_one(wanted, slots):
                return placement
    for slots in _fewer(footprint.slots, ENOUGH_SLOTS):
        if placement := room.on_several(wanted, slots, wishes.spread):
            return placement
    for slots in _fewer(footprint.slots):
        if not wishes.spread and (placement := room.on_one(wanted, slots)):
            return placement
        if placement := room.on_several(wanted, slots, wishes.spread):
            return placement
    return room.on_some(wanted) or room.on_cpu()


def too_large(devices: Sequence[DeviceView], footprint: Footprint, free: Mapping[str, int]) -> str:
    """Says in numbers why there is no place for a model."""
    need = footprint.weights + footprint.slot + footprint.compute
    there = ", ".join(
        f"{free.get(device.name, 0) / GIB:.1f} GiB of {device.total / GIB:.1f} on {device.name}"
        for device in devices[:8]
    )
    return (
        f"it needs {need / GIB:.1f} GiB of memory, and there are at most {there or 'no devices'}; "
        "use a smaller num_ctx or a smaller model"
    )


def is_near(placement: Placement, ideal: Placement | None, slots: bool = True) -> bool:
    """Whether a placement is nearly as good as the one that an empty host would have."""
    if ideal is None:
        return True
    on_cpu_too = len(ideal.taken) > len(ideal.shares)
    least = NEARLY * ideal.layers if on_cpu_too else ideal.layers
    return (
        placement.layers >= least
        and (len(placement.shares) <= len(ideal.shares) or not placement.shares)
        and (not slots or placement.slots >= HALF * ideal.slots)
    )


def _fewer(slots: int, least: float = 0.0) -> list[int]:
    """Numbers of slots to try: as many as wanted, then halves, never less than a part of them."""
    tries = [max(1, slots)]
    while tries[-1] > max(1, least * slots):
        tries.append(max(1, int(least * slots), tries[-1] // 2))
    return tries


class _Room:
    """The devices that come into question, with what is free on each."""

    def __init__(
        self,
        devices: Sequence[DeviceView],
        footprint: Footprint,
        wishes: Wishes,
        free: Mapping[str, int] | None,
        busy: Mapping[str, int],
    ) -> None:
        self._footprint = footprint
        self._busy = busy
        self._cpu: DeviceView | None = None
        self.gpus: list[DeviceView] = []
        only, avoid = wishes.only, wishes.avoid
        main = None
        index = 0
        for device in devices:
            if device.kind is DeviceKind.CPU:
                self._cpu = device
                continue
            if (not only or device.name in only) and device.name not in avoid:
                self.gpus.append(device)
                if index == wishes.main_gpu:
                    main = device.name
            index += 1
        self._main = main
        self._cpu_allowed = not only or bool(self._cpu and self._cpu.name in only)
        self._free: Mapping[str, int] = (
            {device.name: device.free for device in devices} if free is None else free
        )

    def _memory(self, layers: int, slots: int) -> int:
        """Bytes of so many layers with their part of the slots."""
        footprint = self._footprint
        whole = footprint.weights + slots * footprint.slot
        return -(-whole * layers // max(1, footprint.layers))

    def _rest(self, layers: int, slots: int) -> dict[str, int] | None:
        """What stays on the CPU when so many layers are offloaded; None where it does not fit."""
        left = self._footprint.layers - layers
        if left <= 0:
            return {}
        # The rest of a split model needs the CPU whatever devices it is pinned to.
        need = self._memory(left, slots) + self._footprint.compute
        if self._cpu is None or self._free.get(self._cpu.name, 0) < need:
            return None
        return {self._cpu.name: need}

    def on_one(self, layers: int, slots: int) -> Placement | None:
        """On one GPU, the main one where that was named."""
        need = self._memory(layers, slots) + self._footprint.compute
        best: DeviceView | None = None
        best_key: tuple[bool, int, int] | None = None
        free, busy = self._free, self._busy
        for device in self.gpus:
            there = free.get(device.name, 0)
            if there < need:
                continue
            key = (device.name != self._main, busy.get(device.name, 0), there)
            if best_key is None or key < best_key:
                best, best_key = device, key
        if best is None:
            return None
        return self._offloaded([(best, layers)], slots)

    def on_several(self, layers: int, slots: int, spread: bool) -> Placement | None:
        """Over the fewest GPUs of one backend, or over all of them."""
        candidates: list[list[tuple[DeviceView, int]]] = []
        for gpus in self._backends():
            parts = self._split(gpus, layers, slots, spread)
            if parts:
                candidates.append(parts)
        if not candidates:
            return None
        return self._offloaded(min(candidates, key=len), slots)

    def on_some(self, layers: int) -> Placement | None:
        """As many layers as the GPUs of one backend hold, with one slot; the rest on the CPU."""
        best: list[tuple[DeviceView, int]] = []
        for gpus in self._backends():
            parts = [(gpu, held) for gpu in gpus if (held := self._holds(gpu, 1)) > 0]
            total = sum(held for _, held in parts)
            if total > sum(held for _, held in best):
                best = parts
        total = sum(held for _, held in best)
        if not total:
            return None
        if total > layers:
            best = self._shrunk(best, layers)
        return self._offloaded(best, 1)

    def on_cpu(self) -> Placement | None:
        """On the CPU alone."""
        if self._cpu is None or not self._cpu_allowed:
            return None
        footprint = self._footprint
        there = self._free.get(self._cpu.name, 0)
        for slots in _fewer(footprint.slots):
            need = self._memory(footprint.layers, slots) + footprint.compute
            if need <= there:
                return Placement((), 0, slots, {self._cpu.name: need}, True)
        return None

    def _backends(self) -> list[list[DeviceView]]:
        """The GPUs of each backend, the emptiest first: vendors are never mixed in one model.

        Nor are simulated devices mixed with real ones of the same name.
        """
        groups: dict[tuple[str, bool], list[DeviceView]] = {}
        for gpu in self.gpus:
            groups.setdefault((gpu.backend, gpu.simulated), []).append(gpu)
        for gpus in groups.values():
            gpus.sort(key=lambda gpu: self._free.get(gpu.name, 0), reverse=True)
        return list(groups.values())

    def _holds(self, gpu: DeviceView, slots: int) -> int:
        """Layers that fit on a GPU."""
        room = self._free.get(gpu.name, 0) - self._footprint.compute
        each = self._memory(1, slots)
        if room < 0:
            return 0
        return self._footprint.layers if each == 0 else room // each

    def _split(
        self, gpus: list[DeviceView], layers: int, slots: int, spread: bool
    ) -> list[tuple[DeviceView, int]] | None:
        held: list[tuple[DeviceView, int]] = []
        total = 0
        for gpu in gpus:
            if (fits := self._holds(gpu, slots)) <= 0:
                continue
            held.append((gpu, fits))
            total += fits
            if total >= layers and not spread:
                break
        if total < layers:
            return None
        if spread:
            held = held[:layers]
        return self._shrunk(held, layers)

    @staticmethod
    def _shrunk(held: list[tuple[DeviceView, int]], layers: int) -> list[tuple[DeviceView, int]]:
        """So many layers over these devices, in proportion to what each could hold."""
        total = sum(fits for _, fits in held)
        parts = [layers * fits // total for _, fits in held]
        missing = layers - sum(parts)
        # Each lacks less than one layer of its proportion: one more fits where it is not full.
        for index, (_, fits) in enumerate(held):
            if missing and parts[index] < fits:
                parts[index] += 1
                missing -= 1
        return [(gpu, part) for (gpu, _), part in zip(held, parts, strict=True) if part]

    def _offloaded(self, parts: list[tuple[DeviceView, int]], slots: int) -> Placement | None:
        layers = sum(part for _, part in parts)
        rest = self._rest(layers, slots)
        if rest is None:
            return None
        taken = {
            gpu.name: self._memory(part, slots) + self._footprint.compute for gpu, part in parts
        }
        parts.sort(key=lambda part: part[0].name != self._main)
        shares = tuple(Share(gpu.name, gpu.id, gpu.backend, float(part)) for gpu, part in parts)
        cores = bool(rest) or any(gpu.simulated for gpu, _ in parts)
        return Placement(shares, layers, slots, taken | rest, cores)
