"""What the scheduler knows of devices, and what is left of them."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronk.protocol.messages.devices import Device, DeviceKind, Discovered
from pronk.protocol.messages.fleet import LoadedModel, Placed
from pronk.protocol.settings import load_settings
from pronk.scheduler import devices as devices_module
from pronk.scheduler.devices import CPU, Devices, Reading

GIB = 2**30
TWO = '[{"name":"sim0","memory":"8GiB"},{"name":"sim1","memory":"4GiB"}]'
GPU = Device("CUDA0", DeviceKind.GPU, "CUDA", 24 * GIB, 20 * GIB, "0000:01:00.0", "a GPU")
CONTEXT = GIB // 2
"""What the runtime takes of a GPU for each process."""


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with 64 GiB of memory, of which 48 are free."""
    for name in list(os.environ):
        if name.startswith(("PRONK_", "OLLAMA_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(devices_module, "total_memory", lambda: 64 * GIB)
    monkeypatch.setattr(devices_module, "free_memory", lambda: 48 * GIB)


def devices(**settings: object) -> Devices:
    return Devices(load_settings(**settings))


def with_gpu(**settings: object) -> Devices:
    known = devices(**settings)
    known.on_discovered(Discovered("a" * 32, [GPU], 8))
    return known


def free(known: Devices, name: str = CPU) -> float:
    """GiB."""
    return next(view.free for view in known.views() if view.name == name) / GIB


def loaded(resident: float = 0, **placed: float) -> LoadedModel:
    """A model that takes so many GiB on each device."""
    parts = [Placed(name, int(size * GIB)) for name, size in placed.items()]
    size = sum(part.size for part in parts)
    return LoadedModel("m", "a" * 64, 4096, 1, size, 0, parts, int(resident * GIB))


def test_declared_devices_take_the_place_of_those_that_are_there():
    known = devices(devices=TWO)
    assert known.known
    assert not known.needs_discovery
    views = known.views()
    assert [(v.name, v.backend, v.total / GIB, v.simulated) for v in views] == [
        ("sim0", "simulated", 8, True),
        ("sim1", "simulated", 4, True),
        ("CPU", "CPU", 64, False),
    ]
    assert [view.kind for view in views] == [DeviceKind.GPU, DeviceKind.GPU, DeviceKind.CPU]


def test_without_a_declaration_a_worker_is_asked_once():
    known = devices()
    assert known.needs_discovery
    assert not known.known
    known.on_discovering()
    assert not known.needs_discovery
    known.on_discovered(Discovered("a" * 32, [GPU], 8))
    assert known.known
    assert not known.needs_discovery
    assert [view.name for view in known.views()] == ["CUDA0", "CPU"]
    assert known.cores == 8


def test_a_driver_that_fails_twice_leaves_the_processors(caplog: pytest.LogCaptureFixture):
    known = devices()
    known.on_discovering()
    known.on_discovery_failed("it died")
    assert known.needs_discovery
    assert not known.known
    known.on_discovering()
    known.on_discovery_failed("it died again")
    assert known.known
    assert not known.needs_discovery
    assert [view.name for view in known.views()] == ["CPU"]
    assert "it died again" in caplog.text


def test_a_device_cannot_pass_for_the_processors():
    known = devices()
    liar = Device("CPU", DeviceKind.GPU, "CUDA", GIB, GIB)
    known.on_discovered(Discovered("a" * 32, [liar], 0))
    assert [(view.name, view.total / GIB) for view in known.views()] == [("CPU", 64)]
    assert known.cores == 1


def test_what_is_promised_is_not_given_twice():
    known = devices(devices=TWO)
    known.promise("w0", {"sim0": 5 * GIB, CPU: GIB})
    assert (free(known, "sim0"), free(known, "sim1"), free(known)) == (3, 4, 47)
    known.promise("w0", {"sim1": GIB})  # told again: the earlier promise is void
    assert (free(known, "sim0"), free(known, "sim1"), free(known)) == (8, 3, 48)
    known.release("w0")
    known.release("w0")
    assert (free(known, "sim0"), free(known, "sim1")) == (8, 4)


def test_what_a_worker_really_took_counts_instead():
    known = devices(devices=TWO)
    known.promise("w0", {"sim0": 5 * GIB})
    known.settle("w0", loaded(sim0=2.5))
    assert free(known, "sim0") == 5.5
    known.release("w0")
    assert free(known, "sim0") == 8


def test_more_than_all_leaves_nothing_and_not_less():
    known = devices(devices=TWO)
    known.promise("w0", {"sim0": 50 * GIB, CPU: 500 * GIB})
    assert (free(known, "sim0"), free(known)) == (0, 0)


def test_a_reserve_is_kept_on_gpus_and_not_on_the_host():
    known = devices(devices=TWO, PRONK_GPU_OVERHEAD="1GiB")
    assert (free(known, "sim0"), free(known, "sim1"), free(known)) == (7, 3, 48)


def test_memory_of_a_loading_model_is_missing_until_a_reading_shows_it(
    monkeypatch: pytest.MonkeyPatch,
):
    known = devices(devices=TWO)
    known.promise("w0", {CPU: 10 * GIB})
    known.refresh()
    assert free(known) == 38
    # 8 GiB of it are a mapped file, whose pages count as free for the system.
    known.settle("w0", loaded(CPU=10, resident=2))
    assert free(known) == 38
    monkeypatch.setattr(devices_module, "free_memory", lambda: 46 * GIB)
    known.refresh()
    assert free(known) == 38
    known.release("w0")
    monkeypatch.setattr(devices_module, "free_memory", lambda: 48 * GIB)
    known.refresh()
    assert free(known) == 48


def test_memory_that_others_take_of_the_host_is_seen(monkeypatch: pytest.MonkeyPatch):
    known = devices(devices=TWO)
    monkeypatch.setattr(devices_module, "free_memory", lambda: 3 * GIB)
    known.refresh()
    assert free(known) == 3
    (status,) = [status for status in known.statuses() if status.view.name == CPU]
    assert (status.ours, status.others) == (0, 61 * GIB)


def test_without_a_watch_a_gpu_has_what_it_had_less_what_was_taken():
    known = with_gpu()
    assert free(known, "CUDA0") == 20
    known.promise("w0", {"CUDA0": 4 * GIB})
    assert free(known, "CUDA0") == 20 - 4.5  # with the runtime's own
    known.settle("w0", loaded(CUDA0=5))
    known.refresh()
    assert free(known, "CUDA0") == 20 - 5.5
    known.release("w0")
    assert free(known, "CUDA0") == 20


def test_what_outlived_an_earlier_scheduler_was_missing_when_devices_were_counted():
    known = devices()
    known.settle("w0", loaded(CUDA0=3))
    known.on_discovered(Discovered("a" * 32, [GPU], 8))
    assert free(known, "CUDA0") == 20
    known.release("w0")
    assert free(known, "CUDA0") == 23.5


def test_a_watched_gpu_has_what_its_driver_says_less_what_is_still_to_come():
    known = with_gpu()
    known.on_readings({GPU.id: Reading(18 * GIB, 0.5, 61.0)}, known.turn)
    assert free(known, "CUDA0") == 17.5  # less the runtime of whoever comes next
    known.promise("w0", {"CUDA0": 4 * GIB})
    assert free(known, "CUDA0") == 13
    known.settle("w0", loaded(CUDA0=4))
    # A look that began before it had settled may have missed it.
    known.on_readings({GPU.id: Reading(18 * GIB)}, known.turn)
    assert free(known, "CUDA0") == 13
    known.refresh()
    known.on_readings({GPU.id: Reading(13 * GIB, 0.9, 70.0)}, known.turn)
    assert free(known, "CUDA0") == 12.5
    (status,) = [status for status in known.statuses() if status.view.name == "CUDA0"]
    assert status.ours == 4.5 * GIB
    assert status.others == 24 * GIB - 13 * GIB - 4.5 * GIB
    assert (status.utilization, status.temperature) == (0.9, 70.0)


def test_a_reading_of_an_unknown_gpu_changes_nothing():
    known = with_gpu()
    before = known.views()
    known.on_readings({"0000:99:00.0": Reading(1)}, known.turn)
    assert known.views() == before
    assert list(known.watched_ids()) == [GPU.id]


_ACTION = st.tuples(
    st.sampled_from(["promise", "settle", "release", "refresh"]),
    st.sampled_from(["w0", "w1", "w2"]),
    st.sampled_from(["sim0", "sim1", CPU]),
    st.integers(0, 9 * GIB),
)


@given(st.lists(_ACTION))
def test_the_account_is_even_when_everybody_has_left(actions: list[tuple[str, str, str, int]]):
    known = devices(devices=TWO)
    before = known.views()
    for action, worker, device, size in actions:
        match action:
            case "promise":
                known.promise(worker, {device: size})
            case "settle":
                known.settle(worker, loaded(**{device: size / GIB}))
            case "release":
                known.release(worker)
            case _:
                known.refresh()
        assert all(0 <= view.free <= view.total for view in known.views())
    for worker in ("w0", "w1", "w2"):
        known.release(worker)
    assert known.views() == before


def test_only_what_has_changed_is_counted_anew():
    """A decision looks at a thousand devices."""
    many = json.dumps([{"name": f"sim{n}", "memory": "8GiB"} for n in range(1000)])
    known = devices(devices=many)
    before = known.views()
    known.promise("w", {"sim7": GIB})
    after = known.views()
    changed = [new.name for old, new in zip(before, after, strict=True) if old is not new]
    assert changed == ["sim7"]
