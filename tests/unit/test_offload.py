"""Where a model lies is what the scheduler has decided, and what is said of it afterwards."""

from __future__ import annotations

import logging

import pytest

from pronk.protocol.errors import PronkError
from pronk.protocol.messages.devices import DeviceKind
from pronk.protocol.messages.fleet import Placed
from pronk.protocol.messages.library import ModelDetails, ModelFacts
from pronk.protocol.messages.placement import Load, Share
from pronk.workers import discovery
from pronk.workers.inference import ggml, offload
from pronk.workers.inference.ggml import GgmlDevice, visible_devices
from pronk.workers.inference.llama import Model
from pronk.workers.inference.native_log import NativeLog
from pronk.workers.inference.offload import NOTHING, Offload, offload_of
from pronk.workers.inference.placed import placed
from pronk.workers.store.demo import WEIGHTS

DETAILS = ModelDetails("", "gguf", "llama", ["llama"], "1M", "F32")
GIB, MIB = 2**30, 2**20
BUS = "0000:01:00.0"


def gpu(name: str, id: str = "", backend: str = "CUDA", free: int = GIB) -> GgmlDevice:
    return GgmlDevice(1, name, "a GPU", DeviceKind.GPU, backend, 2 * GIB, free, id)


def load(*shares: Share, layers: int = 5) -> Load:
    facts = ModelFacts("m:latest", "a" * 64, str(WEIGHTS), 1, 0, DETAILS)
    return Load(facts, 512, 1, shares=list(shares), layers=layers)


@pytest.fixture
def visible(monkeypatch: pytest.MonkeyPatch) -> list[GgmlDevice]:
    """The devices that ggml sees, to be filled by the test."""
    devices: list[GgmlDevice] = []
    monkeypatch.setattr(offload, "visible_devices", lambda: devices)
    monkeypatch.setattr(ggml, "visible_devices", lambda: devices)
    return devices


def test_devices_are_found_by_bus_id_whatever_they_are_called_here(visible: list[GgmlDevice]):
    visible += [gpu("CUDA0", "0000:02:00.0"), gpu("CUDA1", BUS)]
    first, second = Share("CUDA6", BUS, "CUDA", 2), Share("CUDA7", "0000:02:00.0", "CUDA", 1)
    found = offload_of(load(first, second))
    assert [device.name for device in found.devices] == ["CUDA1", "CUDA0"]
    assert found.real


def test_parts_of_one_gpu_are_told_apart_by_their_order(visible: list[GgmlDevice]):
    visible += [gpu("CUDA0", BUS), gpu("CUDA1", BUS)]
    shares = [Share("CUDA3", BUS, "CUDA", 1), Share("CUDA4", BUS, "CUDA", 1)]
    assert [device.name for device in offload_of(load(*shares)).devices] == ["CUDA0", "CUDA1"]


def test_devices_without_a_bus_are_found_by_name(visible: list[GgmlDevice]):
    visible += [gpu("MTL0", backend="Metal")]
    assert offload_of(load(Share("MTL0", "", "Metal", 1))).devices == tuple(visible)


@pytest.mark.parametrize(
    "shares",
    [
        [Share("CUDA0", "0000:09:00.0", "CUDA", 1)],
        [Share("CUDA9", "", "CUDA", 1)],
        [Share("CUDA0", BUS, "ROCm", 1)],
        [Share("CUDA0", BUS, "CUDA", 1), Share("CUDA1", BUS, "CUDA", 1)],
    ],
)
def test_a_device_that_is_not_there_is_not_replaced(visible: list[GgmlDevice], shares: list[Share]):
    visible += [gpu("CUDA0", BUS)]
    with pytest.raises(PronkError, match="is not there any more"):
        offload_of(load(*shares))


@pytest.mark.parametrize("other", [Share("sim0", "", "simulated", 1), Share("R", "", "ROCm", 1)])
def test_backends_are_never_mixed(visible: list[GgmlDevice], other: Share):
    visible += [gpu("CUDA0", BUS), gpu("R", backend="ROCm")]
    with pytest.raises(PronkError, match="cannot compute together"):
        offload_of(load(Share("CUDA0", BUS, "CUDA", 1), other))


def test_simulated_devices_leave_all_on_the_processors():
    simulated = offload_of(load(Share("sim0", "", "simulated", 1)))
    assert not simulated.real
    assert simulated.layers == 5


def used(caplog: pytest.LogCaptureFixture, given: Offload) -> list[str]:
    """The devices that llama.cpp itself says it uses for a model."""
    with caplog.at_level(logging.DEBUG, "llama.cpp"):
        Model(WEIGHTS, given).close()
    lines = [record.getMessage() for record in caplog.records]
    return [line.partition("using device ")[2].split()[0] for line in lines if "using dev" in line]


def test_llama_cpp_uses_the_devices_that_it_is_given_and_no_others(
    caplog: pytest.LogCaptureFixture,
):
    cpu = visible_devices()[0]  # any device will do for this
    share = Share("X", "", "CPU", 1.0)
    assert used(caplog, Offload((share,), (cpu,), 3)) == ["CPU"]
    caplog.clear()
    assert used(caplog, Offload((share, share), (cpu, cpu), 5)) == ["CPU", "CPU"]
    caplog.clear()
    assert used(caplog, NOTHING) == []
    caplog.clear()
    assert used(caplog, Offload((share,), (cpu,), 0)) == []


def test_the_room_for_a_model_is_where_it_is_to_lie(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(offload, "free_memory", lambda: 8 * GIB)
    share = Share("CUDA0", BUS, "CUDA", 1)
    devices = (gpu("CUDA0", free=2 * GIB), gpu("CUDA1", free=GIB))
    assert NOTHING.free_memory(10) == 8 * GIB
    assert Offload((share, share), devices, 10).free_memory(10) == 3 * GIB
    # Half of it on the devices: they are full before the host is.
    assert Offload((share, share), devices, 5).free_memory(10) == 6 * GIB
    assert Offload((share, share), devices, 1).free_memory(10) == int(8 * GIB / 0.9)


SPLIT = """
load_tensors:   CPU_Mapped model buffer size =    10.00 MiB
load_tensors:        CUDA0 model buffer size =   100.00 MiB
load_tensors:        CUDA1 model buffer size =    50.00 MiB
llama_context:  CUDA_Host  output buffer size =     2.00 MiB
llama_kv_cache:      CUDA0 KV buffer size =    20.00 MiB
llama_kv_cache:      CUDA1 KV buffer size =    10.00 MiB
llama_kv_cache: size =   30.00 MiB (   512 cells,   4 layers,  1/1 seqs), K (f16):   15.00 MiB
sched_reserve:      CUDA0 compute buffer size =     8.00 MiB
sched_reserve:      CUDA1 compute buffer size =     7.00 MiB
sched_reserve:  CUDA_Host compute buffer size =     1.00 MiB
"""


@pytest.fixture
def log() -> NativeLog:
    log = NativeLog()
    for line in SPLIT.strip().splitlines():
        log.write(2, f"{line}\n".encode())
    return log


def test_what_lies_where_is_llama_cpps_own_account(log: NativeLog):
    shares = (Share("CUDA5", BUS, "CUDA", 2), Share("CUDA6", "", "CUDA", 1))
    # In this process the second device is counted first.
    given = Offload(shares, (gpu("CUDA1"), gpu("CUDA0")), 5)
    assert placed(log, given, 5) == [
        Placed("CUDA5", 67 * MIB),
        Placed("CUDA6", 128 * MIB),
        Placed("CPU", 13 * MIB),
    ]
    assert log.allocated == 208 * MIB
    assert log.on_devices("compute") == {"CUDA0": 8 * MIB, "CUDA1": 7 * MIB, "CPU": MIB}


def test_a_simulated_device_holds_what_a_real_one_would(log: NativeLog):
    shares = (Share("sim0", "", "simulated", 3), Share("sim1", "", "simulated", 1))
    assert placed(log, Offload(shares, (), 5), 10) == [
        Placed("sim0", 78 * MIB),
        Placed("sim1", 26 * MIB),
        Placed("CPU", 104 * MIB),
    ]
    assert placed(log, NOTHING, 10) == [Placed("CPU", 208 * MIB)]


def test_a_dry_run_tells_of_caches_that_it_does_not_make(log: NativeLog):
    assert log.remembered("KV") == 30 * MIB
    dry = NativeLog()
    dry.write(2, b"llama_kv_cache:        CPU KV buffer size =     0.00 MiB\n")
    dry.write(2, b"llama_kv_cache: size =    3.00 MiB (   512 cells, ...\n")
    dry.write(2, b"llama_kv_cache: size =    2.00 MiB (   256 cells, ...\n")
    dry.write(2, b"llama_memory_recurrent: size =    0.50 MiB (     3 cells, ...\n")
    assert (dry.buffers("KV"), dry.remembered("KV")) == (0, 5 * MIB)
    assert dry.remembered("RS") == MIB // 2
    dry.forget()
    assert dry.remembered("KV") == dry.remembered("RS") == 0


def test_a_gpu_that_two_backends_see_counts_once(visible: list[GgmlDevice]):
    cpu = GgmlDevice(1, "CPU", "a processor", DeviceKind.CPU, "CPU", 0, 0, "")
    visible += [
        gpu("CUDA0", BUS, free=3 * GIB),  # more than it has in all: nobody believes that
        gpu("Vulkan0", BUS, "Vulkan"),
        gpu("", "0000:02:00.0", "Vulkan"),
        gpu("CUDA0", "0000:03:00.0"),
        cpu,
        cpu,
    ]
    answer = discovery.discover("a" * 32)
    assert [(device.name, device.backend) for device in answer.devices] == [
        ("CPU", "CPU"),
        ("CUDA0", "CUDA"),
        ("Vulkan2", "Vulkan"),
    ]
    assert answer.devices[0].total > 0
    assert answer.devices[1].free == answer.devices[1].total == 2 * GIB


def test_ggmls_own_devices_are_what_they_are():
    (cpu,) = [device for device in visible_devices() if device.kind is DeviceKind.CPU]
    assert (cpu.name, cpu.backend) == ("CPU", "CPU")
    assert 0 < cpu.free <= cpu.total
