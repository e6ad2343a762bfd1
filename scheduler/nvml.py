"""What NVIDIA's driver reports of its GPUs while the server runs: through nvidia-ml-py, if it is
installed.

Its calls may block for as long as a driver in trouble likes, so they are made in a thread of their
own, which nothing waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from .devices import Reading

_log = logging.getLogger(__name__)

_SECONDS = 2.0
"""Between two looks."""

Readings = dict[str, Reading]
"""By PCI bus id."""


def nvml_library() -> Any | None:
    """The binding, started; None where there is none, or no driver that it could talk to."""
    try:
        library = importlib.import_module("pynvml")
        library.nvmlInit()
    except ImportError:
        return None
    except Exception as error:  # its errors are its own, and a driver's trouble is not ours
        _log.warning("NVML does not work, so GPUs are not watched: %s", error)
        return None
    return library


def read_gpus(library: Any, ids: Iterable[str]) -> Readings:
    """What is reported of the GPUs with these bus ids. What cannot be read is left out."""
    readings: Readings = {}
    for id in ids:
        try:
            handle = library.nvmlDeviceGetHandleByPciBusId(id.encode())
            free = int(library.nvmlDeviceGetMemoryInfo(handle).free)
        except Exception as error:
            _log.debug("%s: %s", id, error)
            continue
        utilization = temperature = None
        with contextlib.suppress(Exception):  # not every GPU tells
            utilization = library.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        with contextlib.suppress(Exception):
            sensor = library.NVML_TEMPERATURE_GPU
            temperature = float(library.nvmlDeviceGetTemperature(handle, sensor))
        readings[id] = Reading(free, utilization, temperature)
    return readings


class GpuWatch:
    """Looks at GPUs every two seconds; `report(readings, turn)` is called in the event loop.

    `turn()` is asked in the event loop before each look, and given back with what it brought.
    """

    def __init__(
        self,
        ids: Iterable[str],
        turn: Callable[[], int],
        report: Callable[[Readings, int], None],
        library: Callable[[], Any | None] = nvml_library,
    ) -> None:
        self._ids = list(ids)
        self._turn = turn
        self._report = report
        self._library = library
        self._loop = asyncio.get_running_loop()
        self._began = turn()
        self._stop = threading.Event()
        # A daemon: a driver that hangs must not keep the scheduler from ending.
        threading.Thread(target=self._watch, name="nvml", daemon=True).start()

    def close(self) -> None:
        """Looks no more."""
        self._stop.set()

    def _watch(self) -> None:
        if (library := self._library()) is None:
            return
        began = self._began
        while not self._stop.is_set():
            readings = read_gpus(library, self._ids)
            with contextlib.suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._pass_on, readings, began)
            self._stop.wait(_SECONDS)
            began = self._began

    def _pass_on(self, readings: Readings, began: int) -> None:
        self._began = self._turn()
        if not self._stop.is_set():
            self._report(readings, began)
