"""The number of threads changes between two steps, and nothing else does."""

from __future__ import annotations

import threading

import llama_cpp
import pytest

from pronk.protocol.messages.placement import SetThreads
from pronk.workers.inference.context import ContextPlan
from pronk.workers.inference.embedder import Embedder
from pronk.workers.inference.engine import Engine
from pronk.workers.inference.llama import Model
from pronk.workers.inference.thread import Computers, EngineThread
from pronk.workers.store.demo import WEIGHTS
from support.server import PATIENCE, wait_for


@pytest.fixture
def computers() -> Computers:
    model = Model(WEIGHTS)
    plan = ContextPlan(slots=1, length=256, threads=1, batch=64)
    return Computers(Engine(model, plan, 0), Embedder(model, 256, 1), model)


def threads_of(computers: Computers) -> tuple[int, int]:
    assert computers.engine
    handle = computers.engine.context.handle
    return llama_cpp.llama_n_threads(handle), llama_cpp.llama_n_threads_batch(handle)


def test_all_contexts_change_and_later_ones_begin_so(
    computers: Computers, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert threads_of(computers) == (1, 1)
    computers.set_threads(3)
    assert threads_of(computers) == (3, 3)
    context = computers.embedder._open()
    assert llama_cpp.llama_n_threads(context._handle) == 3
    computers.set_threads(2)
    assert llama_cpp.llama_n_threads(context._handle) == 2
    computers.set_threads(0)  # nobody computes with none
    assert threads_of(computers) == (1, 1)
    computers.set_threads(2**63 - 1)  # nor with more than there are processors
    assert threads_of(computers) == (3, 3)


def test_a_logit_is_the_same_with_any_number_of_threads(computers: Computers):
    assert computers.engine
    context = computers.engine.context
    rows: list[list[float]] = []
    for threads in (1, 2):
        context.set_threads(threads)
        context.clear()
        context.decode([5, 6, 7], [0, 1, 2], [0, 0, 0], [2])
        rows.append(context.logits(2).tolist())
    assert rows[0] == rows[1]


def test_an_idle_engine_obeys_at_once(computers: Computers):
    def nothing(*_: object) -> None:
        pass

    thread = EngineThread(lambda: computers, nothing, nothing, nothing, nothing)
    thread.start()
    thread.set_threads(SetThreads(2))
    wait_for(lambda: threads_of(computers) == (2, 2), "two threads")
    assert thread.is_alive()


def test_a_wait_for_company_that_is_over_before_it_began_ends(
    computers: Computers, monkeypatch: pytest.MonkeyPatch
):
    def nothing(*_: object) -> None:
        pass

    thread = EngineThread(lambda: computers, nothing, nothing, nothing, nothing)
    engine = computers.engine
    assert engine
    monkeypatch.setattr(Engine, "patience", 1e-6)

    def gather_often() -> None:
        for _ in range(10_000):
            thread._commands.put(SetThreads(1))
            thread._commands.get()
            thread._gather(computers, engine)

    gathering = threading.Thread(target=gather_often, daemon=True)
    gathering.start()
    gathering.join(PATIENCE)
    assert not gathering.is_alive()
