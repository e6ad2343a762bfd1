"""Where a model lies, on made-up hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronk.scheduler.policies.placement import Placement, Wishes, place, too_large
from pronk.scheduler.policies.resources import DeviceView, Footprint
from support.policies import GIB, cpu, gpu

TEN = Footprint(weights=9 * GIB, slot=GIB // 4, slots=2, compute=GIB // 2, layers=20)
"""10 GiB on one device: 9.5 GiB in its layers, 0.5 GiB to compute in."""


def where(placement: Placement | None) -> dict[str, float]:
    assert placement
    return {share.device: share.portion for share in placement.shares}


def test_of_several_gpus_the_one_that_it_fills_best():
    devices = [gpu("a", 24 * GIB), gpu("b", 12 * GIB), gpu("c", 8 * GIB), cpu()]
    placement = place(devices, TEN)
    assert where(placement) == {"b": 20}
    assert placement is not None
    assert (placement.layers, placement.slots, placement.cores) == (20, 2, False)
    assert placement.taken == {"b": 10 * GIB}


def test_a_gpu_that_nobody_works_on_goes_before_one_that_it_would_fill_better():
    devices = [gpu("a", 24 * GIB), gpu("b", 12 * GIB), cpu()]
    assert where(place(devices, TEN, busy={"b": 1})) == {"a": 20}
    assert where(place(devices, TEN, busy={"a": 1, "b": 1})) == {"b": 20}


def test_what_is_free_counts_and_not_what_is_there():
    devices = [gpu("a", 24 * GIB, free=9 * GIB), gpu("b", 24 * GIB, free=11 * GIB), cpu()]
    assert where(place(devices, TEN)) == {"b": 20}
    assert where(place(devices, TEN, free={"a": 10 * GIB, "b": 0})) == {"a": 20}


def test_a_model_that_no_gpu_holds_is_split_over_the_fewest_in_proportion_to_their_room():
    devices = [gpu("a", 4 * GIB), gpu("b", 8 * GIB), gpu("c", 6 * GIB), cpu()]
    placement = place(devices, TEN)
    assert where(placement) == {"b": 12, "c": 8}
    assert placement
    assert not placement.cores
    assert all(placement.taken[device.name] <= device.free for device in devices[1:3])


def test_gpus_of_two_vendors_never_hold_one_model():
    devices = [
        gpu("a", 6 * GIB, backend="CUDA"),
        gpu("b", 6 * GIB, backend="ROCm"),
        gpu("c", 5 * GIB, backend="ROCm"),
        cpu(),
    ]
    assert where(place(devices, TEN)).keys() == {"b", "c"}
    mixed = place([devices[0], devices[1], cpu()], TEN)
    assert len(where(mixed)) == 1  # rather with the CPU's help


def test_simulated_devices_count_as_gpus_that_compute_on_the_processor():
    devices = [gpu("sim0", backend="simulated", simulated=True), cpu()]
    placement = place(devices, replace(TEN, weights=GIB))
    assert where(placement) == {"sim0": 20}
    assert placement
    assert placement.cores


def test_what_all_gpus_together_cannot_hold_lies_on_the_cpu():
    placement = place([gpu("a", 4 * GIB), gpu("b", 3 * GIB), cpu()], TEN)
    assert placement
    assert 0 < placement.layers < 20
    assert placement.layers == sum(where(placement).values())
    assert placement.cores
    assert placement.taken["a"] <= 4 * GIB
    assert placement.taken["b"] <= 3 * GIB
    whole = TEN.weights + TEN.slot  # one slot: memory is scarce
    assert sum(placement.taken.values()) >= whole


def test_without_a_gpu_and_without_layers_for_it_the_cpu_has_it_all():
    alone = Placement((), 0, 2, {"CPU": 10 * GIB}, True)
    assert place([cpu()], TEN) == alone
    assert place([gpu("a", 24 * GIB), cpu()], TEN, Wishes(num_gpu=0)) == alone
    assert place([cpu(9 * GIB)], TEN) is None


@pytest.mark.parametrize(("asked", "layers"), [(5, 5), (20, 20), (999, 20), (None, 20)])
def test_no_more_layers_are_offloaded_than_were_asked_for(asked: int | None, layers: int):
    placement = place([gpu("a", 24 * GIB), cpu()], TEN, Wishes(num_gpu=asked))
    assert where(placement) == {"a": layers}
    assert placement
    assert ("CPU" in placement.taken) == (layers < 20)


def test_the_main_gpu_is_the_one_that_was_asked_for_where_it_has_room():
    devices = [gpu("a", 12 * GIB), gpu("b", 24 * GIB), gpu("c", 9 * GIB), cpu()]
    assert where(place(devices, TEN, Wishes(main_gpu=1))) == {"b": 20}
    assert where(place(devices, TEN, Wishes(main_gpu=2))) == {"a": 20}
    assert where(place(devices, TEN, Wishes(main_gpu=99))) == {"a": 20}
    three = [gpu(name, 8 * GIB) for name in "abc"]
    split = place([*three, cpu()], TEN, Wishes(main_gpu=1))
    assert split
    assert split.shares[0].device in ("a", "b")
    both = place([gpu("a", 7 * GIB), gpu("b", 7 * GIB), cpu()], TEN, Wishes(main_gpu=1))
    assert both
    assert both.shares[0].device == "b"


def test_spread_uses_all_gpus_of_a_backend():
    devices = [gpu("a", 24 * GIB), gpu("b", 24 * GIB), gpu("c", 12 * GIB), cpu()]
    placement = place(devices, TEN, Wishes(spread=True))
    assert where(placement).keys() == {"a", "b", "c"}
    assert where(placement)["a"] > where(placement)["c"]


def test_pins_and_what_is_to_be_avoided_are_kept():
    devices = [gpu("a", 24 * GIB), gpu("b", 24 * GIB), cpu()]
    assert where(place(devices, TEN, Wishes(only=("b",)))) == {"b": 20}
    assert where(place(devices, TEN, Wishes(avoid=frozenset("a")))) == {"b": 20}
    small = [gpu("a", 24 * GIB), gpu("b", GIB), cpu()]
    assert place(small, TEN, Wishes(only=("none",))) is None
    assert place(small, TEN, Wishes(only=("CPU",))) == Placement((), 0, 2, {"CPU": 10 * GIB}, True)


def test_one_gpu_with_fewer_slots_goes_before_several_with_all():
    many = Footprint(4 * GIB, GIB, 8, 0, 20)
    devices = [gpu("a", 8 * GIB), gpu("b", 8 * GIB), cpu()]
    placement = place(devices, many)
    assert placement
    assert (len(placement.shares), placement.slots) == (1, 4)
    # Not with so few of them that most requests would wait.
    few = [gpu("a", 5 * GIB), gpu("b", 8 * GIB, free=5 * GIB), cpu()]
    split = place(few, many)
    assert split
    assert len(split.shares) == 2


def test_a_model_that_is_too_large_is_told_in_numbers():
    text = too_large([cpu(4 * GIB)], TEN, {"CPU": 3 * GIB})
    assert "needs 9.8 GiB" in text
    assert "3.0 GiB of 4.0 on CPU" in text


sizes = st.integers(0, 40 * GIB)
footprints = st.builds(
    Footprint,
    weights=sizes,
    slot=st.integers(0, 2 * GIB),
    slots=st.integers(1, 16),
    compute=st.integers(0, GIB),
    layers=st.integers(1, 100),
)
hosts = st.lists(
    st.tuples(sizes, st.sampled_from(["CUDA", "ROCm"]), st.booleans()), max_size=6
).map(
    lambda kinds: [
        gpu(f"g{n}", 48 * GIB, free, backend=backend, simulated=simulated)
        for n, (free, backend, simulated) in enumerate(kinds)
    ]
)
wishes = st.builds(
    Wishes,
    num_gpu=st.none() | st.integers(0, 120),
    main_gpu=st.none() | st.integers(0, 7),
    spread=st.booleans(),
    only=st.sampled_from([(), ("g0",), ("g0", "g2", "CPU")]),
    avoid=st.sampled_from([frozenset[str](), frozenset({"g1"})]),
)


@given(hosts, sizes, footprints, wishes)
def test_no_placement_promises_what_is_not_there(
    gpus: list[DeviceView], memory: int, footprint: Footprint, wish: Wishes
):
    devices = [*gpus, cpu(memory)]
    placement = place(devices, footprint, wish)
    if placement is None:
        return
    views = {device.name: device for device in devices}
    assert all(size <= views[name].free for name, size in placement.taken.items())
    assert 1 <= placement.slots <= footprint.slots
    assert placement.layers == sum(share.portion for share in placement.shares)
    assert all(share.portion > 0 and share.portion.is_integer() for share in placement.shares)
    assert placement.layers <= footprint.layers
    assert wish.num_gpu is None or placement.layers <= wish.num_gpu
    held = [views[share.device] for share in placement.shares]
    assert len({(device.backend, device.simulated) for device in held}) <= 1
    assert all(not wish.only or device.name in wish.only for device in held)
    assert not wish.avoid & {device.name for device in held}
    needed = footprint.weights + placement.slots * footprint.slot
    computing = len(held) + (placement.layers < footprint.layers)
    assert sum(placement.taken.values()) >= needed + computing * footprint.compute


@given(hosts, sizes, footprints, st.integers(0, 5), st.integers(0, 8 * GIB))
def test_more_memory_never_takes_a_place_away(
    gpus: list[DeviceView], memory: int, footprint: Footprint, which: int, more: int
):
    devices = [*gpus, cpu(memory)]
    free = {device.name: device.free for device in devices}
    before = place(devices, footprint, free=free)
    grown = devices[which % len(devices)].name
    after = place(devices, footprint, free=free | {grown: free[grown] + more})
    if before:
        assert after
        assert after.layers >= before.layers
