"""Watching GPUs through NVIDIA's binding, here with one that plays it, for want of the driver."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from pronk.scheduler.devices import Reading
from pronk.scheduler.nvml import GpuWatch, nvml_library, read_gpus
from support.stage import PATIENCE

GIB = 2**30


class Binding:
    """Two GPUs, of which the second tells nothing but its memory; and one that fails."""

    NVML_TEMPERATURE_GPU = 0

    def nvmlDeviceGetHandleByPciBusId(self, id: bytes) -> str:
        if id == b"broken":
            raise RuntimeError("GPU is lost")
        return id.decode()

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(free=5 * GIB if handle == "first" else GIB)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if handle != "first":
            raise RuntimeError("Not Supported")
        return SimpleNamespace(gpu=40, memory=3)

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        if handle != "first":
            raise RuntimeError("Not Supported")
        return 71


def test_what_a_gpu_does_not_tell_is_left_out():
    readings = read_gpus(Binding(), ["first", "broken", "second"])
    assert readings == {"first": Reading(5 * GIB, 0.4, 71.0), "second": Reading(GIB)}


async def test_readings_arrive_in_the_event_loop_with_the_turn_of_their_beginning():
    arrived: asyncio.Queue[tuple[Any, int, threading.Thread]] = asyncio.Queue()
    watch = GpuWatch(
        ["first"],
        lambda: 7,
        lambda readings, turn: arrived.put_nowait((readings, turn, threading.current_thread())),
        Binding,
    )
    async with asyncio.timeout(PATIENCE):
        readings, turn, thread = await arrived.get()
    watch.close()
    assert (readings["first"].free, turn) == (5 * GIB, 7)
    assert thread is threading.current_thread()


async def test_a_driver_that_hangs_holds_up_nobody():
    hanging, go_on = threading.Event(), threading.Event()

    def library() -> None:
        hanging.set()
        go_on.wait()

    def report(*_: object) -> None:
        raise AssertionError("there is nothing to report")

    watch = GpuWatch(["first"], lambda: 0, report, library)
    await asyncio.to_thread(hanging.wait)
    watch.close()
    go_on.set()


def test_without_a_driver_there_is_no_binding():
    try:
        import pynvml  # type: ignore[import-not-found]

        pynvml.nvmlInit()
    except Exception:
        assert nvml_library() is None
    else:
        assert nvml_library() is pynvml
