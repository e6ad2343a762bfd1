"""Lifecycles: one table each, nothing beside it, and every change in the log."""

from __future__ import annotations

import logging
from enum import Enum, StrEnum
from typing import Any

import pytest

from pronk.frontend import exchange
from pronk.frontend.exchange import Phase
from pronk.protocol.errors import Code, PronkError
from pronk.protocol.lifecycle import Lifecycle
from pronk.protocol.messages.fleet import WorkerPhase
from pronk.protocol.messages.generation import Caller, Generate
from pronk.protocol.process import new_incarnation, own_identity
from pronk.scheduler import fleet
from pronk.scheduler.policies.assignment import WorkerState
from pronk.workers import process
from pronk.workers.inference import replica

HEADER = Generate(
    "5" * 32, 1, "model", "a" * 64, Caller(), "f" * 16, "ipc:///tmp/x", seed=1, cost=1
)
LOG = logging.getLogger("lifecycles")


class Door(StrEnum):
    OPEN = "open"
    SHUT = "shut"
    GONE = "gone"


DOOR = Lifecycle(
    "door",
    {Door.OPEN: {Door.SHUT}, Door.SHUT: {Door.OPEN, Door.GONE}, Door.GONE: set()},
    LOG,
)


def test_a_change_that_the_table_has_is_made_and_logged(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "lifecycles")
    assert DOOR.step("front", Door.OPEN, Door.SHUT) is Door.SHUT
    assert [record.getMessage() for record in caplog.records] == ["door front: open → shut"]


@pytest.mark.parametrize(
    ("old", "new"), [(Door.OPEN, Door.GONE), (Door.OPEN, Door.OPEN), (Door.GONE, Door.OPEN)]
)
def test_a_change_that_the_table_lacks_is_a_fault(old: Door, new: Door):
    with pytest.raises(ValueError, match=f"a door cannot go from {old} to {new}"):
        DOOR.step("front", old, new)


def test_a_table_that_forgets_a_state_is_a_fault():
    with pytest.raises(ValueError, match="does not say what follows"):
        Lifecycle("door", {Door.OPEN: {Door.SHUT}, Door.SHUT: {Door.OPEN}}, LOG)


@pytest.mark.parametrize(
    ("lifecycle", "start", "ends"),
    [
        (fleet.WORKER, WorkerState.BLANK, {WorkerState.GONE}),
        (process._LIFE, WorkerPhase.BLANK, {WorkerPhase.DRAINING}),
        (
            replica._LIFE,
            replica.ReplicaState.LOADING,
            {replica.ReplicaState.READY, replica.ReplicaState.FAILED},
        ),
        (exchange.REQUEST, Phase.WAITING, {Phase.ENDED}),
    ],
)
def test_every_state_can_be_reached_and_leads_to_an_end(
    lifecycle: Lifecycle[Any], start: Enum, ends: set[Enum]
):
    def reachable(state: Enum) -> set[Enum]:
        seen, todo = {state}, [state]
        while todo:
            for following in lifecycle.transitions[todo.pop()] - seen:
                seen.add(following)
                todo.append(following)
        return seen

    assert reachable(start) == set(type(start))
    assert {state for state, after in lifecycle.transitions.items() if not after} == ends
    assert all(reachable(state) & ends for state in lifecycle.transitions)


def test_a_worker_that_drains_never_gets_ready_again():
    worker = fleet.Worker(new_incarnation(), own_identity(), None, 0.0)
    for state in (WorkerState.LOADING, WorkerState.READY, WorkerState.DRAINING):
        worker.enter(state, 1.0)
    with pytest.raises(ValueError, match="cannot go from draining to ready"):
        worker.enter(WorkerState.READY, 2.0)
    assert (worker.state, worker.since) == (WorkerState.DRAINING, 1.0)


def test_what_has_ended_is_not_begun_again():
    request = exchange.Exchange(HEADER, b"body")
    request.started("f" * 16)
    request.fail(PronkError(Code.INTERNAL, "no"))
    request.started("f" * 16)
    assert request.phase is Phase.ENDED
    assert not request.try_again()


def test_requests_are_logged_for_whoever_looks_closely(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "pronk.frontend.exchange")
    request = exchange.Exchange(HEADER, b"body")
    request.started("f" * 16)
    assert request.try_again()
    lines = [record.getMessage() for record in caplog.records]
    assert [line.rpartition(": ")[2] for line in lines] == [
        "waiting → running",
        "running → waiting",
    ]
    assert all("5" * 32 in line for line in lines)
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
