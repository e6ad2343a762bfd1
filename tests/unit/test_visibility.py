"""What a worker shows the GPU runtimes, by what the kernel's drivers say."""

from __future__ import annotations

from pathlib import Path

import pytest

from pronk.protocol.messages.placement import Share
from pronk.workers.visibility import SIMULATED, Drivers, visibility

FIRST, SECOND = "0000:01:00.0", "0000:c1:00.0"
NOTHING = {
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
    "GGML_VK_VISIBLE_DEVICES": "",
}


def cuda(bus: str) -> Share:
    return Share(f"CUDA{bus}", bus, "CUDA", 1.0)


def rocm(bus: str) -> Share:
    return Share(f"ROCm{bus}", bus, "ROCm", 1.0)


@pytest.fixture
def drivers(tmp_path: Path) -> Drivers:
    """Those of a host with two GPUs of each vendor, the second AMD one without a UUID."""
    nvidia, amd = tmp_path / "nvidia", tmp_path / "amd"
    for bus, uuid in ((FIRST, "1111-aa"), (SECOND, "2222-bb")):
        (nvidia / bus).mkdir(parents=True)
        text = f"Model: \t\t NVIDIA Thing\nIRQ:   \t\t 16\nGPU UUID: \t GPU-{uuid}\nDMA: \t x\n"
        (nvidia / bus / "information").write_text(text)
    nodes = [
        "simd_count 0\nlocation_id 0\ndomain 0\nunique_id 0\n",
        f"simd_count 256\nlocation_id {0x01 << 8}\ndomain 0\nunique_id {0xABC}\n",
        f"simd_count 256\nlocation_id {0xC1 << 8}\ndomain 0\nunique_id 0\n",
    ]
    for number, properties in enumerate(nodes):
        (amd / str(number)).mkdir(parents=True)
        (amd / str(number) / "properties").write_text(properties)
    return Drivers(nvidia, amd, {})


@pytest.mark.parametrize("shares", [[], [Share("sim0", "", SIMULATED, 1.0)]])
def test_without_a_gpu_none_is_visible(drivers: Drivers, shares: list[Share]):
    assert visibility(shares, drivers) == NOTHING


def test_nvidias_are_named_by_uuid_in_the_order_of_the_shares(drivers: Drivers):
    shown = visibility([cuda(SECOND), cuda(FIRST)], drivers)
    assert shown["CUDA_VISIBLE_DEVICES"] == "GPU-2222-bb,GPU-1111-aa"
    assert shown["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert shown["ROCR_VISIBLE_DEVICES"] == shown["GGML_VK_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize("bus", ["0000:09:00.0", "", "../../etc", "0000:01:00.0/.."])
def test_what_no_driver_names_is_not_hidden_by_a_guess(drivers: Drivers, bus: str):
    assert "CUDA_VISIBLE_DEVICES" not in visibility([cuda(FIRST), cuda(bus)], drivers)
    assert "ROCR_VISIBLE_DEVICES" not in visibility([rocm(bus)], drivers)


def test_parts_of_a_gpu_stay_as_the_operator_chose_them(drivers: Drivers):
    operator = Drivers(drivers.nvidia, drivers.amd, {"CUDA_VISIBLE_DEVICES": "MIG-abc"})
    assert "CUDA_VISIBLE_DEVICES" not in visibility([cuda(FIRST)], operator)


def test_amds_are_named_by_uuid_or_number_and_shown_by_one_layer_alone(drivers: Drivers):
    shown = visibility([rocm(SECOND), rocm(FIRST)], drivers)
    assert shown["ROCR_VISIBLE_DEVICES"] == "1,GPU-0000000000000abc"
    # HIP would count anew in what is left, and takes CUDA's variable for its own.
    assert "HIP_VISIBLE_DEVICES" not in shown
    assert "CUDA_VISIBLE_DEVICES" not in shown


def test_an_operators_choice_among_amds_stays(drivers: Drivers):
    operator = Drivers(drivers.nvidia, drivers.amd, {"HIP_VISIBLE_DEVICES": "1"})
    shown = visibility([rocm(SECOND)], operator)
    assert not {"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"} & shown.keys()


def test_vulkans_are_told_apart_by_ggml_alone(drivers: Drivers):
    shown = visibility([Share("Vulkan0", FIRST, "Vulkan", 1.0)], drivers)
    assert shown == {name: "" for name in NOTHING if name != "GGML_VK_VISIBLE_DEVICES"}
