"""What the scheduler expects a replica to take, and how it finds out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronk.protocol.messages.devices import Device, DeviceKind, Discovered, Measured
from pronk.protocol.messages.fleet import LoadedModel, Placed
from pronk.protocol.messages.library import ModelDetails, ModelFacts
from pronk.protocol.messages.placement import CacheType, Load, Share
from pronk.protocol.settings import load_settings
from pronk.scheduler import devices as devices_module
from pronk.scheduler.devices import CPU, Devices
from pronk.scheduler.footprint import Footprints, bytes_by_device
from pronk.scheduler.policies.resources import Footprint

GIB, MIB = 2**30, 2**20
DETAILS = ModelDetails("", "gguf", "llama", ["llama"], "7B", "Q4_0")
GPU = Device("CUDA0", DeviceKind.GPU, "CUDA", 24 * GIB, 20 * GIB, "0000:01:00.0")
MEASURED = Measured("c" * 32, weights=4 * GIB, slot=GIB, slots=3, compute=GIB // 2, layers=33)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices_module, "total_memory", lambda: 64 * GIB)
    monkeypatch.setattr(devices_module, "free_memory", lambda: 40 * GIB)


def footprints(clock: Clock, *gpus: Device, declared: str = "") -> Footprints:
    devices = Devices(load_settings(devices=declared))
    if not declared:
        devices.on_discovered(Discovered("a" * 32, list(gpus), 4))
    return Footprints(devices, clock)


SIMULATED = '[{"name":"sim0","memory":"8GiB"}]'
SIM0 = Share("sim0", "", "simulated", 1.0)


def load(size: int = 4 * GIB, context: int = 4096, digest: str = "a", **fields: object) -> Load:
    facts = ModelFacts(f"{digest}:latest", digest * 64, "/m", size, 8192, DETAILS)
    return Load(facts, context, 1, **fields)  # type: ignore[arg-type]


def test_on_processors_alone_a_model_that_clearly_fits_is_not_measured(clock: Clock):
    known = footprints(clock)
    footprint = known.of(load())
    assert footprint
    assert footprint.weights == 4 * GIB
    assert footprint.total < 20 * GIB
    assert known.wanted() is None


def test_one_that_may_not_fit_is(clock: Clock):
    known = footprints(clock)
    assert known.of(load(30 * GIB)) is None
    assert known.wanted() == load(30 * GIB)


def test_where_there_are_devices_to_choose_from_every_model_is(clock: Clock):
    known = footprints(clock, declared=SIMULATED)
    assert known.of(load(MIB)) is None
    wanted = known.wanted()
    assert wanted
    assert (wanted.model, wanted.shares) == (load(MIB).model, [SIM0])
    known.on_measuring(wanted)
    assert known.of(load(MIB)) is None
    assert known.of(load(MIB, digest="b")) is None
    assert known.wanted() is None  # one at a time
    known.on_measured(wanted, MEASURED)
    assert known.of(load(MIB)) == Footprint(4 * GIB, GIB, 3, GIB // 2, 33)
    assert known.of(load(MIB, digest="b")) is None
    following = known.wanted()
    assert following
    assert following.model.name == "b:latest"


def test_it_is_measured_on_the_kind_of_device_that_it_will_lie_on(clock: Clock):
    known = footprints(clock, GPU)
    assert known.of(load()) is None
    wanted = known.wanted()
    assert wanted
    assert wanted.shares == [Share("CUDA0", GPU.id, "CUDA", 1.0)]
    assert wanted.layers > 1000
    known.on_measured(wanted, MEASURED)
    assert known.of(load())


@pytest.mark.parametrize(
    "change",
    [
        {"context_length": 8192},
        {"parallel": 2},
        {"cache_type": CacheType.Q8_0},
        {"batch": 64},
        {"shares": [SIM0, SIM0]},
        {"shares": [Share("CUDA0", "", "CUDA", 1.0)]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_it_depends_on_is_measured_anew(clock: Clock, change: dict[str, object]):
    known = footprints(clock, declared=SIMULATED)
    known.on_measured(load(shares=[SIM0]), MEASURED)
    assert known.of(load())
    assert known.of(replace(load(), **change)) is None  # type: ignore[arg-type]
    # Nothing depends on these: a model is measured before it is known how much of it fits.
    assert known.of(replace(load(shares=[SIM0]), threads=7, layers=9))


def test_what_nobody_asks_for_any_more_is_not_measured(clock: Clock):
    known = footprints(clock, declared=SIMULATED)
    known.of(load())
    clock.now += 3
    known.of(load(digest="b"))
    clock.now += 3
    wanted = known.wanted()
    assert wanted
    assert wanted.model.name == "b:latest"


def test_what_cannot_be_measured_is_guessed(clock: Clock, caplog: pytest.LogCaptureFixture):
    known = footprints(clock, declared=SIMULATED)
    known.of(load())
    wanted = known.wanted()
    assert wanted
    known.on_measuring(wanted)
    known.on_failed(wanted, "the worker process died over it")
    assert known.of(load()) == known.guess(load())
    assert "a:latest could not be measured: the worker process died" in caplog.text
    assert known.wanted() is None


def test_what_a_replica_really_took_corrects_what_was_measured(clock: Clock):
    known = footprints(clock)
    big = load(30 * GIB)
    known.on_measured(big, replace(MEASURED, weights=30 * GIB))
    size = 30 * GIB + 2 * GIB + GIB
    known.on_loaded(big, LoadedModel("a", "a" * 64, 4096, 2, size, 0))
    assert known.of(big) == Footprint(30 * GIB, GIB, 2, GIB, 33)


def test_memory_that_llama_cpp_does_not_know_of_counts_as_well(clock: Clock):
    known = footprints(clock)
    known.on_measured(load(), MEASURED)
    size = MEASURED.weights + 3 * GIB + MEASURED.compute
    parts = [Placed(CPU, size)]
    known.on_loaded(load(), LoadedModel("a", "a" * 64, 4096, 3, size, 0, parts, size + GIB))
    footprint = known.of(load())
    assert footprint
    assert footprint.total == size + GIB


def test_the_fullest_device_corrects_what_is_expected_of_all(clock: Clock):
    known = footprints(clock, GPU)
    shares = [Share("CUDA0", "", "CUDA", 22), Share("CUDA1", "", "CUDA", 11)]
    split = load(shares=shares, layers=33)
    known.on_measured(split, MEASURED)
    expected = bytes_by_device(Footprint(4 * GIB, GIB, 3, GIB // 2, 33), split)
    # The output layer is larger than the others; what the host holds beside it is nobody's layer.
    parts = [
        Placed("CUDA0", expected["CUDA0"] - 5),
        Placed("CUDA1", expected["CUDA1"] + 7 * MIB),
        Placed(CPU, GIB),
    ]
    size = sum(part.size for part in parts)
    taken = LoadedModel("a", "a" * 64, 4096, 3, size, size - GIB, parts, 2 * GIB)
    known.on_loaded(split, taken)
    footprint = known.of(split)
    assert footprint
    assert footprint.compute == GIB // 2 + 7 * MIB
    assert bytes_by_device(footprint, split)["CUDA1"] == parts[1].size


def test_a_guess_is_corrected_to_the_whole_that_was_taken(clock: Clock):
    known = footprints(clock)
    before = known.of(load())
    assert before
    size = 4 * GIB + 900 * MIB
    known.on_loaded(load(), LoadedModel("a", "a" * 64, 4096, 4, size, 0))
    after = known.of(load())
    assert after
    assert (after.weights, after.slots) == (4 * GIB, 4)
    assert after.total == pytest.approx(size, rel=0.001)


@given(
    st.integers(1, 2**45),
    st.integers(1, 2**24),
    st.integers(0, 240),
    st.integers(0, 2**45),
    st.integers(0, 2**45),
    st.integers(0, 300),
)
def test_whatever_was_taken_no_footprint_is_negative_or_larger_than_that(
    size: int, context: int, parallel: int, taken: int, resident: int, slots: int
):
    known = footprints(Clock())
    asked = load(size, context, parallel=parallel)
    guess = known.guess(asked)
    assert min(guess.weights, guess.slot, guess.slots, guess.compute) >= 0
    model = LoadedModel("a", "a" * 64, context, slots, taken, 0, [], resident)
    known.on_loaded(asked, model)
    footprint = known.of(asked)
    assert footprint
    assert min(footprint.weights, footprint.slot, footprint.compute) >= 0
    assert footprint.total <= max(taken, resident)


def test_ever_new_contexts_do_not_fill_the_memory(clock: Clock):
    known = footprints(clock, declared=SIMULATED)
    for context in range(1, 5000):
        known.on_measured(load(context=context, shares=[SIM0]), MEASURED)
    assert known.of(load(context=4999))
    assert known.of(load(context=1)) is None


FOOTPRINT = Footprint(weights=3300, slot=330, slots=10, compute=7, layers=33)


def test_a_replica_without_devices_takes_all_of_it_from_the_host():
    assert bytes_by_device(FOOTPRINT, load()) == {CPU: FOOTPRINT.total}


def test_a_replica_on_one_device_takes_nothing_else():
    share = Share("sim0", "", "simulated", 33)
    sizes = bytes_by_device(FOOTPRINT, load(shares=[share], layers=33))
    assert sizes == {"sim0": FOOTPRINT.total}


def test_a_split_replica_takes_its_portions_and_computes_on_each():
    shares = [Share("sim0", "", "simulated", 20), Share("sim1", "", "simulated", 10)]
    sizes = bytes_by_device(FOOTPRINT, load(shares=shares, layers=30))
    assert sizes == {"sim0": 4007, "sim1": 2007, CPU: 607}
