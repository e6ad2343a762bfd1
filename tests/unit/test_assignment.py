"""Promises of the placement policy, on made-up fleets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronk.scheduler.policies.views import (
    Demand,
    Dispatch,
    EndReplica,
    LoadModel,
    WorkerState,
    WorkerView,
)
from support.policies import NOW, assign

A, B, C = "a" * 64, "b" * 64, "c" * 64


def demand(n: int, digest: str = A, context: int = 512) -> Demand:
    return Demand((f"{n:032x}", 1), digest, context, since=NOW)


def blank(name: str) -> WorkerView:
    return WorkerView(name, WorkerState.BLANK)


def ready(
    name: str,
    digest: str = A,
    *,
    free: int = 1,
    running: int | None = None,
    context: int = 4096,
    used: float = 0.0,
) -> WorkerView:
    running = int(free == 0) if running is None else running
    return WorkerView(name, WorkerState.READY, digest, context, free, running, used)


def test_nothing_to_do_without_demand():
    assert assign([], [blank("w0"), ready("w1")]) == []


def test_a_request_goes_to_the_replica_of_its_model():
    workers = [ready("w0", B), ready("w1", A), blank("w2")]
    assert assign([demand(1)], workers) == [Dispatch(demand(1).id, "w1")]


def test_requests_beyond_the_free_slots_wait_in_order_of_arrival():
    actions = assign([demand(1), demand(2), demand(3)], [ready("w0", free=2)])
    assert actions == [Dispatch(demand(1).id, "w0"), Dispatch(demand(2).id, "w0")]


def test_an_unloaded_model_is_loaded_once_with_context_for_all_that_wait():
    actions = assign([demand(1, context=512), demand(2, context=2048)], [blank("w0"), blank("w1")])
    assert actions == [LoadModel("w0", A, 2048)]


def test_a_model_that_is_loading_is_not_loaded_again():
    loading = WorkerView("w0", WorkerState.LOADING, A, 4096)
    assert assign([demand(1)], [loading, blank("w1")]) == []


def test_two_models_get_two_blank_workers():
    actions = assign([demand(1, A), demand(2, B)], [blank("w0"), blank("w1")])
    assert actions == [LoadModel("w0", A, 512), LoadModel("w1", B, 512)]


def test_without_a_blank_worker_the_least_recently_used_idle_replica_makes_room():
    workers = [ready("w0", A, used=5), ready("w1", B, used=3)]
    assert assign([demand(1, C)], workers) == [EndReplica("w1", "another model needs its worker")]


def test_a_busy_replica_is_never_ended():
    assert assign([demand(1, C)], [ready("w0", A, free=0)]) == []


def test_a_replica_that_others_wait_for_is_not_ended():
    actions = assign([demand(1, C), demand(2, A)], [ready("w0", A)])
    assert actions == [Dispatch(demand(2, A).id, "w0")]


def test_a_request_that_has_waited_long_is_overtaken_no_more():
    late = Demand(demand(1, C).id, C, 512, since=NOW - 10)
    younger = demand(2, A)
    end = EndReplica("w0", "a model that has waited needs its worker")
    assert assign([late, younger], [ready("w0", A)]) == [end]
    # Nor is a replica ended beneath a stream: what came later stays out until it is idle.
    busy = ready("w0", A, running=1)
    assert assign([late, younger], [busy]) == []
    # Who came earlier still goes first.
    assert assign([younger, late], [ready("w0", A)]) == [Dispatch(younger.id, "w0")]


def test_a_worker_on_its_way_out_is_waited_for_instead_of_ending_another():
    ending = WorkerView("w0", WorkerState.ENDING, A)
    assert assign([demand(1, C)], [ending, ready("w1", B)]) == []


def test_the_successor_of_a_worker_that_exited_is_waited_for_instead_of_ending_another():
    workers = [ready("w0", A, used=2), ready("w1", B, used=1)]
    assert assign([demand(1, C)], workers, departed=1) == []
    two = assign([demand(1, C), demand(2, "d" * 64)], workers, departed=1)
    assert two == [EndReplica("w1", "another model needs its worker")]


def test_of_two_replicas_the_one_that_is_ready_serves():
    loading = WorkerView("w1", WorkerState.LOADING, A, 4096)
    for workers in ([ready("w0"), loading], [loading, ready("w0")]):
        assert assign([demand(1)], workers) == [Dispatch(demand(1).id, "w0")]


def test_without_room_a_larger_context_ends_the_idle_replica_and_waits_for_the_busy_one():
    end = EndReplica("w0", "a request needs a larger context")
    assert assign([demand(1, context=8192)], [ready("w0")]) == [end]
    assert assign([demand(1, context=8192)], [ready("w0", free=0)]) == []


def test_a_larger_context_gets_a_replica_beside_the_smaller_one_where_there_is_room():
    large = demand(1, context=8192)
    for smaller in (ready("w0"), ready("w0", free=0), ready("w0", free=15, running=1)):
        assert assign([large], [smaller, blank("w1")]) == [LoadModel("w1", A, 8192)]


def test_a_replica_just_given_a_request_is_not_ended_for_a_larger_context():
    actions = assign([demand(1), demand(2, context=8192)], [ready("w0")])
    assert actions == [Dispatch(demand(1).id, "w0")]


def test_a_busy_replica_with_free_slots_is_not_ended_for_a_larger_context():
    assert assign([demand(1, context=8192)], [ready("w0", free=15, running=1)]) == []


def test_smaller_requests_pass_one_that_needs_a_larger_context_for_a_while():
    busy = ready("w0", free=3, running=1)
    large, small = demand(1, context=8192), demand(2)
    assert assign([large, small], [busy]) == [Dispatch(small.id, "w0")]
    late = Demand(large.id, A, 8192, since=NOW - 10)
    assert assign([late, small], [busy]) == []
    # Who came earlier still goes first.
    assert assign([small, late], [busy]) == [Dispatch(small.id, "w0")]


@pytest.mark.parametrize("slots", [4, 16])
def test_all_free_slots_are_filled_in_order_of_arrival(slots: int):
    waiting = [demand(n) for n in range(slots + 3)]
    actions = assign(waiting, [ready("w0", free=slots, running=0)])
    assert actions == [Dispatch(d.id, "w0") for d in waiting[:slots]]
    rest = assign(waiting, [ready("w0", free=2, running=slots - 2)])
    assert rest == [Dispatch(d.id, "w0") for d in waiting[:2]]


def test_of_busy_replicas_the_one_with_the_least_to_do_gives_way():
    late = Demand(demand(1, C).id, C, 512, since=NOW - 10)
    waiting = [late, demand(2, A), demand(3, B)]
    workers = [ready("w0", A, free=2, running=14), ready("w1", B, free=1, running=15)]
    assert assign(waiting, workers) == [Dispatch(demand(3, B).id, "w1")]


def test_a_replica_that_makes_room_for_one_makes_it_for_nobody_else():
    late = Demand(demand(2).id, C, 512, since=NOW - 10)
    actions = assign([demand(1, A), late], [ready("w0", B)])
    assert actions == [EndReplica("w0", "another model needs its worker")]


states = st.sampled_from(list(WorkerState))
digests = st.sampled_from([A, B, C])


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[Demand], list[WorkerView]]:
    workers: list[WorkerView] = []
    for index in range(draw(st.integers(0, 6))):
        state = draw(states)
        if state is WorkerState.BLANK:
            workers.append(blank(f"w{index}"))
            continue
        slots = draw(st.integers(0, 3))
        free = draw(st.integers(0, slots)) if state is WorkerState.READY else 0
        workers.append(
            WorkerView(
                f"w{index}",
                state,
                draw(digests),
                draw(st.sampled_from([512, 4096])),
                free,
                slots - free,
                draw(st.floats(0, 100)),
            )
        )
    demands = [
        Demand(
            demand(n).id,
            draw(digests),
            draw(st.sampled_from([512, 4096, 8192])),
            NOW - draw(st.sampled_from([0.0, 10.0])),
        )
        for n in range(draw(st.integers(0, 8)))
    ]
    return demands, workers


@given(fleets())
def test_whatever_the_fleet_no_action_breaks_a_rule(fleet: tuple[list[Demand], list[WorkerView]]):
    demands, workers = fleet
    views = {worker.id: worker for worker in workers}
    wanted = {d.id: d for d in demands}
    actions = assign(demands, workers)
    dispatched = [action for action in actions if isinstance(action, Dispatch)]
    for worker in workers:
        sent = [action for action in dispatched if action.worker == worker.id]
        assert len(sent) <= worker.free_slots
    assert len({action.demand for action in dispatched}) == len(dispatched)
    touched = [action.worker for action in actions if not isinstance(action, Dispatch)]
    assert len(set(touched)) == len(touched)
    for action in actions:
        worker = views[action.worker]
        match action:
            case Dispatch(key, _):
                assert worker.state is WorkerState.READY
                assert worker.digest == wanted[key].digest
                assert worker.context_length >= wanted[key].context_length
            case LoadModel():
                assert worker.state is WorkerState.BLANK
            case EndReplica():
                assert worker.state is WorkerState.READY
                assert not worker.running
                assert not any(sent.worker == worker.id for sent in dispatched)


def test_a_suspect_goes_where_no_other_one_is_and_nothing_follows_it():
    suspects = [replace(demand(n), suspect=True) for n in (1, 2)]
    assert assign([*suspects, demand(3)], [ready("w0", free=4)]) == [Dispatch(suspects[0].id, "w0")]
    assert assign([demand(3), *suspects], [ready("w0", free=4)]) == [
        Dispatch(demand(3).id, "w0"),
        Dispatch(suspects[0].id, "w0"),
    ]
    guarded = replace(ready("w0", free=4, running=1), suspects=1)
    assert assign([demand(3)], [guarded]) == []
    assert assign([suspects[0]], [guarded]) == []


def test_a_worker_of_another_host_loads_what_finds_no_worker_here_and_takes_nothing_here():
    there = WorkerView("there", WorkerState.BLANK, remote=True)
    here = WorkerView("here", WorkerState.BLANK)
    first, second = Demand(("r", 1), "m", 1), Demand(("s", 1), "n", 1)
    actions = assign([first, second], [there, here])
    assert [(a.worker, a.digest) for a in actions if isinstance(a, LoadModel)] == [
        ("here", "m"),
        ("there", "n"),
    ]
    assert actions[-1] == LoadModel("there", "n", 1)
    assert isinstance(actions[-1], LoadModel)
    assert not actions[-1].cores, "those of this host are not what it computes on"
    lacking = WorkerView("there", WorkerState.BLANK, remote=True, lacks=frozenset({"m"}))
    assert assign([first], [lacking]) == []
