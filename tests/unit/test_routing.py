"""Which replica a request goes to, and what is remembered of their caches."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pronk.protocol.recent import Recent
from pronk.scheduler.policies.routing import HELD, USUAL_ANSWER, PrefixIndex, route
from pronk.scheduler.policies.views import Demand, WorkerState, WorkerView

A = "a" * 64
CHAIN = tuple(bytes([link]) * 16 for link in range(11))
LONG = Demand(("1" * 32, 1), A, 512, cost=8000 + USUAL_ANSWER, prefix=CHAIN)


def replica(name: str, *, free: int, running: int = 0, used: float = 0.0) -> WorkerView:
    return WorkerView(name, WorkerState.READY, A, 4096, free, running, used)


def chosen(
    demand: Demand, *replicas: WorkerView, waited: float = 0.0, **matched: int
) -> str | None:
    free = {view.id: view.free_slots for view in replicas}
    view = route(demand, replicas, free, matched, waited)
    return view and view.id


def test_the_longest_prefix_that_somebody_has_read_is_found():
    index = PrefixIndex()
    index.note("w0", CHAIN[:4])
    index.note("w1", CHAIN[:8])
    index.note("other", CHAIN)
    assert index.matched(CHAIN, ["w0", "w1", "w2"]) == {"w0": 3, "w1": 7}
    branch = (*CHAIN[:6], b"x" * 16, b"y" * 16)
    assert index.matched(branch, ["w0", "w1"]) == {"w0": 3, "w1": 5}


def test_the_model_alone_is_no_prefix():
    index = PrefixIndex()
    index.note("w0", CHAIN[:1])
    assert index.matched(CHAIN, ["w0"]) == {}
    assert index.matched(CHAIN[:1], ["w0"]) == {}


def test_what_a_worker_read_is_forgotten_with_it_and_beyond_the_bound():
    index = PrefixIndex(bound=4)
    index.note("w0", CHAIN[:4])
    index.note("w1", CHAIN[:4])
    index.forget("w0")
    assert index.matched(CHAIN, ["w0", "w1"]) == {"w1": 3}
    index.note("w1", [bytes([n]) * 16 for n in range(100, 104)])
    assert index.matched(CHAIN, ["w1"]) == {}
    index.forget("w1")
    assert index._holders == {}


def test_a_request_goes_where_its_prompt_was_read_though_others_work_there():
    here, there = replica("w0", free=4, running=4), replica("w1", free=8)
    assert chosen(LONG, here, there, w0=9) == "w0"
    assert chosen(LONG, here, there) == "w1"


def test_little_that_was_read_is_worth_no_crowd():
    short = replace(LONG, cost=USUAL_ANSWER + 100)
    here, there = replica("w0", free=1, running=15), replica("w1", free=16)
    assert chosen(short, here, there, w0=1) == "w1"


def test_a_long_prompt_waits_for_the_full_replica_that_has_read_it_but_not_for_long():
    full, free = replica("w0", free=0, running=8), replica("w1", free=8)
    assert chosen(LONG, full, free, w0=10) is None
    assert chosen(LONG, full, free, w0=10, waited=HELD) == "w1"
    short = replace(LONG, cost=USUAL_ANSWER + 100)
    assert chosen(short, full, free, w0=10) == "w1"


def test_of_equal_replicas_the_one_with_the_least_to_do():
    assert chosen(LONG, replica("w0", free=6, running=2), replica("w1", free=7, running=1)) == "w1"


@given(st.lists(st.lists(st.binary(min_size=1, max_size=1), max_size=6), max_size=20))
def test_no_more_is_remembered_than_the_bound(chains: list[list[bytes]]):
    recent = Recent(bound=4)
    held: set[bytes] = set()
    for chain in chains:
        held |= set(chain)
        held -= set(recent.add(chain))
        assert set(recent) == held
        assert len(recent) <= 4
