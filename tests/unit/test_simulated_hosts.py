"""What holds on every host, whatever is asked of it: the policies in simulated hours."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator import traces
from simulator.report import percentile, waits
from simulator.world import GIB, Model, World, gpus, processors

from pronk.protocol.limits import ModelLimits
from pronk.scheduler.policies.eviction import stays_until
from pronk.scheduler.policies.views import Action, Dispatch, EndReplica, LoadModel, WorkerState

HOUR = 3600.0
KEEP_ALIVE = 20.0


def keeps_the_rules(world: World, action: Action) -> None:
    """Fails on an action that no state of a host may lead to."""
    match action:
        case LoadModel(name, digest):
            worker = world.workers[name].view
            assert worker.state is WorkerState.BLANK
            assert all(size <= world.devices[on].free for on, size in action.taken.items())
            replicas = world.board.replicas.get(digest, {})
            assert len(replicas) < world.models[digest].limits.most
        case EndReplica(name, reason):
            worker = world.workers[name]
            assert worker.view.state is WorkerState.READY
            assert not worker.running
            if "has waited" in reason and worker.view.digest in world.board.queues:
                assert world.now >= stays_until(worker.view)
        case Dispatch(key, name):
            worker, request = world.workers[name], world.waiting[key]
            assert worker.view.state is WorkerState.READY
            assert worker.view.digest == request.model.digest
            assert worker.view.context_length >= request.context
            assert worker.view.free_slots > 0
        case _:
            pass


@st.composite
def hosts(draw: st.DrawFn) -> World:
    devices = [
        *gpus(draw(st.integers(0, 4)), draw(st.sampled_from([6, 10])) * GIB),
        *gpus(draw(st.integers(0, 2)), 8 * GIB, "ROCm"),
        processors(draw(st.sampled_from([4, 12])) * GIB),
    ]
    models = [
        Model(
            f"{number:064x}",
            draw(st.integers(1, 14)) * GIB,
            slots=draw(st.sampled_from([1, 4])),
            limits=ModelLimits(max_replicas=draw(st.sampled_from([None, 1, 2]))),
        )
        for number in range(draw(st.integers(1, 5)))
    ]
    workers, seed = draw(st.integers(1, 6)), draw(st.integers(0, 99))
    return World(devices, models, workers, seed=seed, keep_alive=KEEP_ALIVE, check=keeps_the_rules)


requests = st.lists(
    st.tuples(
        st.floats(0, 60),
        st.integers(0, 4),
        st.integers(1, 600),
        st.sampled_from([2048, 4096, 16384]),
    ),
    max_size=60,
)


@settings(max_examples=100, deadline=None)
@given(hosts(), requests)
def test_all_that_fits_is_served_and_no_rule_is_broken(
    world: World, asked: list[tuple[float, int, int, int]]
):
    digests = list(world.models)

    def ask_later(moment: float, which: int, answer: int, context: int) -> None:
        digest = digests[which % len(digests)]
        world.at(
            moment, lambda: world.ask("somebody", digest, 100, answer, context=context) and None
        )

    for one in asked:
        ask_later(*one)
    world.run(61)
    while world.waiting or any(worker.running for worker in world.workers.values()):
        world.run(10)
        assert world.now < HOUR
    most = sum(device.total for device in world.devices.values())
    for request in world.tally.requests:
        assert (request.began is None) == request.failed
        alone = request.model.weights + request.model.slot + GIB // 8
        # What is refused does not fit, at least not on the devices of one vendor.
        assert not request.failed or alone > min(4 * GIB, most)
    # Some time later nothing is loaded, and all memory is back.
    world.run(2 * KEEP_ALIVE)
    assert all(device.free == device.total for device in world.devices.values())


@pytest.mark.parametrize("seed", range(3))
def test_one_callers_flood_does_not_hold_up_the_others(seed: int):
    models = [Model("a" * 64, 4 * GIB)]
    world = World([*gpus(4), processors()], models, 6, seed=seed, check=keeps_the_rules)
    traces.heavy(world, 500)
    tally = world.run(600)
    by_caller = waits(tally, world.now)
    others = [wait for caller, of in by_caller.items() if caller != "heavy" for wait in of]
    assert percentile(others, 0.95) < percentile(by_caller["heavy"], 0.95) / 10
    # And all four GPUs work on it, though nobody asked for more than one replica.
    assert max(tally.most_replicas.values()) == 4


def test_more_models_than_fit_take_turns_and_loading_stays_the_smaller_part():
    models = [Model(f"{number:064x}", 18 * GIB) for number in range(6)]
    world = World([*gpus(2), processors()], models, 4, check=keeps_the_rules)
    traces.exchange(world, 1.0)
    tally = world.run(HOUR / 4)
    loading = sum(
        number * world.models[digest].load_seconds for digest, number in tally.loads.items()
    )
    assert loading < world.now
    waited = [wait for of in waits(tally, world.now).values() for wait in of]
    assert percentile(waited, 0.99) < world.now / 2


def test_a_conversation_stays_where_its_cache_is():
    models = [Model("a" * 64, 4 * GIB, limits=ModelLimits(min_replicas=4))]
    world = World([*gpus(4), processors()], models, 6, check=keeps_the_rules)
    world.board.standing["a" * 64] = 4096
    traces.talks(world, 40)
    tally = world.run(HOUR / 2)
    assert max(tally.most_replicas.values()) == 4
    assert tally.saved > 0.8 * (tally.saved + tally.read_again)
