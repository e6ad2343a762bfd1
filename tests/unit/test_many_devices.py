"""Promises of the policies where there are devices to choose from, on made-up fleets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pronk.protocol.limits import ModelLimits
from pronk.scheduler.policies import assignment
from pronk.scheduler.policies.board import Rules
from pronk.scheduler.policies.eviction import SHORTEST_STAY
from pronk.scheduler.policies.replicas import GROW_AFTER, SURPLUS_IDLE, UNUSED
from pronk.scheduler.policies.resources import DeviceView, Footprint
from pronk.scheduler.policies.views import (
    Action,
    Demand,
    Dispatch,
    EndReplica,
    Fail,
    LoadModel,
    SetThreads,
    WorkerState,
    WorkerView,
)
from support.policies import GIB, NOW, assign, cpu, empty_board, gpu

A, B, C = "a" * 64, "b" * 64, "c" * 64
SIZE = 5 * GIB


def footprint(digest: str, context: int) -> Footprint | None:
    """Five GiB, or as many as the digest's beginning says, and one for each 8,192 of context."""
    weights = SIZE if digest in (A, B, C) else int(digest[:4]) * GIB
    return Footprint(weights, context // 8192 * GIB, 1, 0, 10)


def decided(
    demands: list[Demand],
    workers: list[WorkerView],
    devices: list[DeviceView],
    **fields: Any,
) -> list[Action]:
    """Devices are given as they would be if nothing was loaded."""
    taken: dict[str, int] = {}
    for worker in workers:
        for name, size in worker.taken.items():
            taken[name] = taken.get(name, 0) + size
    left = [replace(view, free=view.free - taken.get(view.name, 0)) for view in devices]
    fields.setdefault("footprint", footprint)
    return assign(demands, workers, devices=left, **fields)


def demand(n: int, digest: str = A, *, waited: float = 0.0, **fields: Any) -> Demand:
    fields.setdefault("context_length", 4096)
    return Demand((f"{n:032x}", 1), digest, since=NOW - waited, **fields)


def blank(name: str) -> WorkerView:
    return WorkerView(name, WorkerState.BLANK)


def ready(
    name: str, digest: str = A, on: str = "g0", *, free: int = 0, **fields: Any
) -> WorkerView:
    fields.setdefault("running", int(free == 0))
    fields.setdefault("context_length", 4096)
    fields.setdefault("taken", {on: SIZE})
    fields.setdefault("layers", 10)
    fields.setdefault("all_layers", 10)
    return WorkerView(name, WorkerState.READY, digest, free_slots=free, **fields)


def loads(actions: list[Action]) -> list[tuple[str, str, list[str]]]:
    return [
        (action.worker, action.digest, [share.device for share in action.shares])
        for action in actions
        if isinstance(action, LoadModel)
    ]


def ends(actions: list[Action]) -> list[str]:
    return [action.worker for action in actions if isinstance(action, EndReplica)]


TWO = [gpu("g0"), gpu("g1"), cpu()]


# More replicas, and fewer


def test_a_model_whose_queue_stays_full_gets_a_replica_on_a_device_where_it_has_none():
    workers = [ready("w0"), blank("w1"), blank("w2")]
    waiting = [demand(n, waited=GROW_AFTER) for n in range(3)]
    assert loads(decided(waiting, workers, TWO)) == [("w1", A, ["g1"])]


def test_a_queue_that_has_only_just_become_full_is_none_that_stays_so():
    workers = [ready("w0"), blank("w1")]
    assert decided([demand(1, waited=GROW_AFTER - 0.1)], workers, TWO) == []
    fresh = ready("w0", ready_since=NOW - 0.1)
    assert decided([demand(1, waited=60)], [fresh, blank("w1")], TWO) == []


def test_what_takes_long_to_load_is_waited_for_as_long():
    workers = [ready("w0", load_seconds=30), blank("w1")]
    assert decided([demand(1, waited=29)], workers, TWO) == []
    assert loads(decided([demand(1, waited=30)], workers, TWO)) == [("w1", A, ["g1"])]


def test_one_more_replica_is_loaded_at_a_time():
    loading = WorkerView("w1", WorkerState.LOADING, A, 4096, taken={"g1": SIZE})
    three = [*TWO, gpu("g2")]
    assert decided([demand(1, waited=9)], [ready("w0"), loading, blank("w2")], three) == []


def test_one_more_replica_takes_nobodys_place_who_works_or_is_waited_for_or_was_used_just_now():
    waiting = [demand(1, waited=9)]
    for other in (
        ready("w1", B, "g1"),
        ready("w1", B, "g1", free=1, last_used=NOW - UNUSED + 1),
    ):
        assert decided(waiting, [ready("w0"), other, blank("w2")], TWO) == []
    wanted = ready("w1", B, "g1", free=1, context_length=10)
    for_b = demand(2, B, waited=0.0)
    assert decided([*waiting, for_b], [ready("w0"), wanted], TWO) == [
        EndReplica("w1", "a request needs a larger context")
    ]


def test_one_more_replica_may_take_the_place_of_one_that_nobody_uses():
    unused = ready("w1", B, "g1", free=1, last_used=NOW - UNUSED)
    assert ends(decided([demand(1, waited=9)], [ready("w0"), unused, blank("w2")], TWO)) == ["w1"]


def test_one_more_replica_is_not_put_where_others_compute():
    large = [gpu("g0", 24 * GIB), gpu("g1", 24 * GIB), cpu()]
    busy = ready("w1", B, "g1")
    assert decided([demand(1, waited=9)], [ready("w0"), busy, blank("w2")], large) == []


@pytest.mark.parametrize(("most", "number"), [(1, 0), (2, 1), (None, 1)])
def test_a_model_has_no_more_replicas_than_its_limit(most: int | None, number: int):
    limits = ModelLimits(max_replicas=most)
    workers = [ready("w0"), blank("w1")]
    actions = decided([demand(1, waited=9)], workers, TWO, limits=lambda digest: limits)
    assert len(loads(actions)) == number


def test_a_model_is_pinned_to_its_devices():
    limits = ModelLimits(devices=["g1"])
    one = decided([demand(1)], [blank("w0")], TWO, limits=lambda digest: limits)
    assert loads(one) == [("w0", A, ["g1"])]
    busy = [ready("w0", on="g1"), blank("w1")]
    assert decided([demand(1, waited=9)], busy, TWO, limits=lambda digest: limits) == []


def test_on_the_cpu_one_more_replica_needs_cores_of_its_own():
    here = ready("w0", on="CPU", layers=0, cores=True, threads=2, most_threads=2)
    waiting, workers = [demand(1, waited=9)], [here, blank("w1")]
    few, many = Rules(cores=3, most_threads=2), Rules(cores=4, most_threads=2)
    assert loads(decided(waiting, workers, [cpu()], rules=few)) == []
    assert loads(decided(waiting, workers, [cpu()], rules=many)) == [("w1", A, [])]


def test_a_replica_that_idles_beside_others_ends_and_the_last_one_stays():
    idle = ready("w0", free=1, last_used=NOW - SURPLUS_IDLE)
    busy = ready("w1", on="g1")
    end = EndReplica("w0", "its model has more replicas than it needs")
    assert decided([], [idle, busy], TWO) == [end]
    other = ready("w1", on="g1", free=1, last_used=NOW - SURPLUS_IDLE - 1)
    assert ends(decided([], [idle, other], TWO)) == ["w1"]
    assert decided([], [idle], TWO) == []
    assert decided([], [ready("w0", free=1, last_used=NOW - 1), busy], TWO) == []
    limits = ModelLimits(min_replicas=2)
    assert decided([], [idle, other], TWO, limits=lambda digest: limits) == []


def test_of_idle_replicas_the_one_with_the_largest_context_stays():
    small = ready("w0", free=1, last_used=NOW - SURPLUS_IDLE)
    large = ready("w1", on="g1", free=1, last_used=NOW - 99, context_length=8192)
    assert ends(decided([], [small, large], TWO)) == ["w0"]


def test_models_that_are_to_stand_are_loaded_though_nobody_asks():
    for limits, there, number in (
        (ModelLimits(min_replicas=2), [], 1),
        (ModelLimits(min_replicas=2), [ready("w0", free=1)], 1),
        (ModelLimits(preload=True), [], 1),
        (ModelLimits(preload=True), [ready("w0", free=1)], 0),
    ):
        fields = {"limits": lambda digest, limits=limits: limits, "standing": {A: 4096}}
        assert len(loads(decided([], [*there, blank("w9")], TWO, **fields))) == number


# Memory, and who makes room


def test_a_model_that_would_fit_on_a_gpu_waits_for_room_there_instead_of_using_the_cpu():
    full = [ready("w0", B, "g0"), ready("w1", C, "g1"), blank("w2")]
    assert decided([demand(1)], full, TWO) == []


def test_the_least_recently_used_idle_replica_whose_memory_helps_makes_room():
    workers = [
        ready("w0", B, "g0", free=1, last_used=1),
        ready("w1", C, "g1", free=1, last_used=2),
        blank("w2"),
    ]
    assert ends(decided([demand(1)], workers, TWO)) == ["w0"]
    small = [gpu("g0", 5 * GIB), gpu("g1", 8 * GIB), cpu()]
    # Six GiB fit on the larger one alone.
    assert ends(decided([demand(1, "0006" + "0" * 60)], workers, small)) == ["w1"]


def test_several_make_room_for_a_large_one_and_no_more_than_have_to():
    workers = [
        replace(ready(f"w{n}", f"{n}" * 64, on, free=1, last_used=n), taken={on: 4 * GIB})
        for n, on in enumerate(["g0", "g1", "g0", "g1"])
    ]
    big = "0008" + "0" * 60
    assert ends(decided([demand(1, big)], [*workers, blank("w9")], TWO)) == ["w0", "w2"]


def test_what_a_waiting_model_makes_room_for_is_not_given_to_a_later_one():
    board = empty_board(footprint)
    big = "0008" + "0" * 60
    busy = replace(ready("w0", B, "g0"), taken={"g0": 4 * GIB})
    devices = [replace(gpu("g0"), free=4 * GIB), cpu()]
    late = demand(1, big, waited=10, arrival=1)
    assert assignment.assign([late], [busy, blank("w1"), blank("w2")], devices, board, NOW) == []
    assert board.claims[big].workers == {"w0"}
    # Four GiB are free, and the young one needs no more; but it would be in the way for long.
    board.add(demand(2, "0004" + "0" * 60, arrival=2))
    assert assignment.decide(board, NOW) == []
    board.update(replace(busy, running=0, free_slots=1))
    assert ends(assignment.decide(board, NOW)) == ["w0"]


def test_a_replica_that_others_wait_for_stays_for_a_while_after_it_was_loaded():
    late = demand(1, waited=10)
    devices = [gpu("g0"), cpu()]
    for since, claimed in ((NOW - SHORTEST_STAY + 0.1, []), (NOW - SHORTEST_STAY, ["w0"])):
        wanted = ready("w0", B, free=1, ready_since=since)
        actions = decided([late, demand(2, B)], [wanted, blank("w1")], devices)
        assert ends(actions) == claimed
        assert (Dispatch(demand(2, B).id, "w0") in actions) == (not claimed)


def test_of_those_that_are_waited_for_a_model_with_two_replicas_gives_one_first():
    workers = [
        ready("w0", B, "g0", last_used=1),
        ready("w1", C, "g1", last_used=2),
        ready("w2", C, "g2", last_used=3),
        blank("w3"),
    ]
    board = empty_board(footprint)
    waiting = [demand(1, waited=10, arrival=1), demand(2, B, arrival=2), demand(3, C, arrival=3)]
    full = [replace(gpu(f"g{n}"), free=3 * GIB) for n in range(3)]
    assignment.assign(waiting, workers, [*full, cpu()], board, NOW)
    (claimed,) = board.claims[A].workers
    assert claimed in ("w1", "w2")


def test_what_does_not_fit_even_alone_is_told_at_once_with_the_numbers():
    huge = "0099" + "0" * 60
    (failed,) = decided([demand(1, huge)], [ready("w0", B), blank("w1")], TWO)
    assert isinstance(failed, Fail)
    assert (failed.digest, failed.context_length) == (huge, 4096)
    assert "99.0 GiB" in failed.reason


def test_a_context_that_is_too_large_is_refused_and_smaller_ones_are_served():
    waiting = [demand(1), demand(2, context_length=8192 * 200)]
    actions = decided(waiting, [blank("w0")], TWO)
    assert loads(actions) == [("w0", A, ["g0"])]
    late = decided([demand(2, context_length=8192 * 200)], [ready("w0", free=1)], TWO)
    assert [action for action in late if isinstance(action, Fail)]


def test_a_larger_context_is_served_beside_the_smaller_one_on_another_device():
    large = demand(1, context_length=8192)
    assert loads(decided([large], [ready("w0"), blank("w1")], TWO)) == [("w1", A, ["g1"])]


def test_another_number_of_layers_is_another_replica():
    here = ready("w0", free=1)
    on_cpu = decided([demand(1, num_gpu=0)], [here, blank("w1")], TWO)
    assert loads(on_cpu) == [("w1", A, [])]
    for asked in (None, 10, 999):
        assert decided([demand(1, num_gpu=asked)], [here], TWO) == [Dispatch(demand(1).id, "w0")]


def test_where_there_is_no_gpu_layers_do_not_matter():
    here = ready("w0", on="CPU", layers=0, free=1)
    assert decided([demand(1, num_gpu=5)], [here], [cpu()]) == [Dispatch(demand(1).id, "w0")]


def test_what_is_being_measured_is_waited_for_and_a_worker_is_freed_for_it():
    idle = ready("w0", B, free=1)
    unknown: dict[str, Any] = {"footprint": lambda digest, context: None}
    assert decided([demand(1)], [idle, blank("w1")], TWO, **unknown) == []
    assert ends(decided([demand(1)], [idle], TWO, **unknown)) == ["w0"]


def test_nothing_is_loaded_before_it_is_known_which_devices_there_are():
    assert decided([demand(1)], [blank("w0")], []) == []


# Suspects


def test_no_two_suspects_share_a_worker():
    suspects = [demand(n, suspect=True) for n in range(3)]
    one = ready("w0", free=4, running=0)
    assert decided(suspects, [one], TWO) == [Dispatch(suspects[0].id, "w0")]
    two = [one, ready("w1", on="g1", free=4, running=0)]
    assert {a.worker for a in decided(suspects, two, TWO) if isinstance(a, Dispatch)} == {
        "w0",
        "w1",
    }
    assert decided(suspects, [replace(one, suspects=1)], TWO) == []


def test_nothing_joins_a_suspect_and_all_others_go_where_none_is():
    guarded = replace(ready("w0", free=4, running=1), suspects=1)
    waiting = [demand(1), demand(2)]
    assert decided(waiting, [guarded], TWO) == []
    free = ready("w1", on="g1", free=4, running=0)
    assert decided(waiting, [guarded, free], TWO) == [
        Dispatch(waiting[0].id, "w1"),
        Dispatch(waiting[1].id, "w1"),
    ]


# Cores


def test_those_that_work_share_the_cores_and_give_them_back_at_once():
    rules = Rules(cores=8, most_threads=8)
    fields: dict[str, Any] = {"cores": True, "most_threads": 8, "layers": 0}
    busy = ready("w0", on="CPU", threads=8, **fields)
    idle = ready("w1", B, on="CPU", free=1, threads=8, **fields)
    begins = decided([demand(1, B)], [busy, idle], [cpu()], rules=rules)
    assert begins == [SetThreads("w0", 4), SetThreads("w1", 4), Dispatch(demand(1).id, "w1")]
    assert decided([], [busy, replace(idle, threads=4)], [cpu()], rules=rules) == []


def test_a_replica_is_loaded_with_its_share_of_the_cores():
    rules = Rules(cores=8, most_threads=6)
    busy = ready("w0", B, on="CPU", threads=6, cores=True, most_threads=6, layers=0)
    (load,) = [
        action
        for action in decided([demand(1)], [busy, blank("w1")], [cpu()], rules=rules)
        if isinstance(action, LoadModel)
    ]
    assert load.threads == 4
    few = decided([demand(1)], [blank("w1")], [cpu()], rules=rules, most_threads=lambda digest: 2)
    assert [action.threads for action in few if isinstance(action, LoadModel)] == [2]
