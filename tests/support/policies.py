"""Boards for the tests of policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pronk.protocol.messages.devices import DeviceKind
from pronk.scheduler.policies import assignment
from pronk.scheduler.policies.board import Board
from pronk.scheduler.policies.resources import DeviceView, Footprint
from pronk.scheduler.policies.views import Action, Demand, WorkerView

NOW = 1000.0
GIB = 2**30

NOTHING = Footprint(weights=0, slot=0, slots=1, compute=0, layers=1)


def cpu(memory: int = 64 * GIB) -> DeviceView:
    return DeviceView("CPU", DeviceKind.CPU, "CPU", memory, memory)


def gpu(name: str, memory: int = 8 * GIB, free: int | None = None, **fields: Any) -> DeviceView:
    free = memory if free is None else free
    fields.setdefault("backend", "CUDA")
    return DeviceView(name, DeviceKind.GPU, total=memory, free=free, **fields)


def empty_board(
    footprint: Callable[[str, int], Footprint | None] = lambda digest, context: NOTHING,
    **fields: Any,
) -> Board:
    return Board(footprint, **fields)


def assign(
    demands: Sequence[Demand],
    workers: Sequence[WorkerView],
    departed: int = 0,
    *,
    devices: Sequence[DeviceView] | None = None,
    **fields: Any,
) -> list[Action]:
    """Actions for requests in the order of the list."""
    board = empty_board(departed=departed, **fields)
    ordered = [replace(demand, arrival=n) for n, demand in enumerate(demands)]
    there = [cpu()] if devices is None else devices
    return assignment.assign(ordered, workers, there, board, NOW)
