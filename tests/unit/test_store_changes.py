from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.changes import (
    Changed,
    CopyModel,
    DeleteModel,
    Progress,
    PullModel,
    PushModel,
    StopCall,
)
from pronk.protocol.messages.library import CallFailed, ListModels, ModelList
from pronk.protocol.state import StateDirectory
from pronk.workers.store import changes, progress
from pronk.workers.store.builtin import BuiltinModel
from pronk.workers.store.catalog import Catalog
from pronk.workers.store.changes import Changes, Run
from pronk.workers.store.layout import Library
from pronk.workers.store.orders import Shelf
from pronk.workers.store.report import Report
from pronk.workers.store.service import Store
from pronk.workers.store.writing import Writer
from support.calls import PATIENCE, Frontend, call, until
from support.store import PHI, Ollama, describe, names, resolve
from support.writing import written

ENDS = (Changed, CallFailed)
MakeStore = Callable[..., Store]


class Gated:
    """Changes that say and do what a test wants, when it wants it."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended: list[str] = []
        self.gate = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.result: str | BaseException | None = None
        self.report: Report | None = None

    async def __call__(self, order: Any, report: Report) -> str | None:
        self.begun += 1
        self.report = report
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            await self.may_end.wait()
            self.ended.append(order.name)
            raise
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.fixture
async def make_store(state: StateDirectory, ollama: Ollama) -> AsyncIterator[MakeStore]:
    stores: list[Store] = []

    def make(runs: dict[type[Any], Run]) -> Store:
        stores.append(Store(state.store, Catalog(Library(ollama.root), None), runs))
        return stores[-1]

    yield make
    for store in stores:
        store.close()
        await store.wait_closed()


@pytest.fixture
async def gated(make_store: MakeStore) -> Gated:
    gated = Gated()
    make_store({PullModel: gated, PushModel: gated})
    return gated


@pytest.fixture
async def frontends(state: StateDirectory) -> AsyncIterator[list[Frontend]]:
    frontends = [Frontend(state.store) for _ in range(2)]
    yield frontends
    for frontend in frontends:
        frontend.close()


@pytest.fixture
def frontend(frontends: list[Frontend]) -> Frontend:
    return frontends[0]


async def refused(frontend: Frontend, order: Any) -> PronkError:
    answer = await frontend.ask(order, *ENDS)
    assert isinstance(answer, CallFailed)
    return answer.failure.error()


async def test_copies_and_deletes_are_done_and_answered(
    make_store: MakeStore, frontend: Frontend, ollama: Ollama, weights: bytes, catalog: Catalog
) -> None:
    writer = Writer(ollama.root)
    digest = written(writer, "phi", weights)
    make_store(dict(Shelf(Library(ollama.root), writer, None).runs()))
    copied = await frontend.ask(CopyModel(call(), "phi", "eva/two"), *ENDS)
    assert copied == Changed(copied.call)
    assert sorted(names(catalog)) == ["eva/two:latest", "phi:latest"]
    deleted = await frontend.ask(DeleteModel(call(), "phi"), *ENDS)
    assert deleted == Changed(deleted.call)
    deleted = await frontend.ask(DeleteModel(call(), "EVA/two"), *ENDS)
    assert deleted == Changed(deleted.call, digest)
    for order, code in (
        (DeleteModel(call(), "phi"), Code.NOT_FOUND),
        (CopyModel(call(), "phi", "x"), Code.NOT_FOUND),
        (CopyModel(call(), "phi", "../x"), Code.INVALID_REQUEST),
        (DeleteModel(call(), "a/b/c/d"), Code.INVALID_REQUEST),
        (DeleteModel(call(), "demo"), Code.NOT_FOUND),
        (PullModel(call(), "phi"), Code.NOT_IMPLEMENTED),
    ):
        assert (await refused(frontend, order)).code is code


async def test_what_is_built_in_is_copied_and_not_deleted(
    make_store: MakeStore, frontend: Frontend, ollama: Ollama, demo: BuiltinModel
) -> None:
    library = Library(ollama.root)
    shelf = Shelf(library, Writer(ollama.root), demo, echo=True)
    make_store(dict(shelf.runs()))
    for name, setting in (("demo", "PRONK_DEMO_MODEL"), ("echo:50", "PRONK_ECHO_MODEL")):
        error = await refused(frontend, DeleteModel(call(), name))
        assert error.code is Code.INVALID_REQUEST
        assert setting in error.message
    error = await refused(frontend, CopyModel(call(), "echo", "mine"))
    assert error.code is Code.INVALID_REQUEST
    assert isinstance(await frontend.ask(CopyModel(call(), "demo", "Demo"), *ENDS), Changed)
    assert not ollama.root.exists()
    for name in ("mine", "demo:mine"):
        assert isinstance(await frontend.ask(CopyModel(call(), "demo", name), *ENDS), Changed)
    catalog = Catalog(library, demo)
    assert sorted(names(catalog)) == ["demo:latest", "demo:mine", "mine:latest"]
    facts = describe(catalog, resolve(catalog, "mine").digest)
    assert facts.details == describe(catalog, resolve(catalog, "demo").digest).details
    assert facts.blob == resolve(catalog, "demo").digest
    # Now it is one like any other.
    for name in ("mine", "demo:mine"):
        deleted = await frontend.ask(DeleteModel(call(), name), *ENDS)
        assert isinstance(deleted, Changed)
    assert deleted.unnamed == facts.digest
    assert list((ollama.root / "blobs").iterdir()) == []


async def test_two_who_pull_one_model_share_one_pull(
    gated: Gated, frontends: list[Frontend]
) -> None:
    first, second = frontends
    calls = call(), call()
    first.send(PullModel(calls[0], "phi"))
    await until(lambda: gated.report)
    gated.report("pulling manifest")
    gated.report("pulling 0123", "sha256:0123", 10, 4)
    await first.hear(calls[0], Progress)
    second.send(PullModel(calls[1], "library/PHI:latest"))
    await until(lambda: len(second.of(calls[1], Progress)) == 2)  # all that was said before
    assert second.heard[-1] == Progress(calls[1], "pulling 0123", "sha256:0123", 10, 4)
    # One that may take less secure ways is not the same.
    first.send(PullModel(call(), "phi", insecure=True))
    await until(lambda: gated.begun == 2)
    first.send(StopCall(calls[0]))
    assert isinstance(await first.ask(ListModels(call())), ModelList)
    assert gated.ended == []
    gated.gate.set()
    assert await second.hear(calls[1], *ENDS) == Changed(calls[1])
    assert first.of(calls[0], *ENDS) == []


async def test_a_change_that_nobody_waits_for_is_ended_and_the_next_one_waits_for_its_end(
    gated: Gated, frontend: Frontend
) -> None:
    gated.may_end.clear()
    first, second = PullModel(call(), "phi"), PullModel(call(), "phi")
    frontend.send(first)
    await until(lambda: gated.begun == 1)
    frontend.send(StopCall(first.call))
    frontend.send(second)
    frontend.send(second)
    assert await frontend.hear(second.call) == Progress(second.call, "pulling manifest")
    assert gated.begun == 1
    gated.may_end.set()
    await until(lambda: gated.begun == 2)
    assert gated.ended == ["phi"]
    gated.gate.set()
    assert await frontend.hear(second.call, *ENDS) == Changed(second.call)


async def test_who_asks_as_soon_as_the_answer_is_there_does_not_join_what_is_over(
    gated: Gated,
) -> None:
    heard: list[Any] = []

    def post(peer: str, message: Any) -> None:
        heard.append(message)
        if message == Changed("first"):
            changes.asked(peer, PullModel("second", "phi"))

    changes = Changes({PullModel: gated}, post)
    gated.gate.set()
    changes.asked("frontend", PullModel("first", "phi"))
    await until(lambda: not changes.under_way)
    assert [each for each in heard if isinstance(each, ENDS)] == [
        Changed("first"),
        Changed("second"),
    ]
    assert gated.begun == 2
    changes.close()


async def test_a_change_that_is_ended_at_once_leaves_nothing(
    gated: Gated, frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MAX_LONG", 1)
    for _ in range(3):
        order = PushModel(call(), "phi")
        frontend.send(order)
        frontend.send(StopCall(order.call))
    gated.gate.set()
    last = PushModel(call(), "phi")
    answer = await frontend.ask(last, *ENDS)
    while isinstance(answer, CallFailed):  # those before are still ending
        last = PushModel(call(), "phi")
        answer = await frontend.ask(last, *ENDS)
    assert answer == Changed(last.call)


async def test_who_is_not_heard_of_any_more_is_let_go(
    gated: Gated, frontends: list[Frontend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "LEASE_SECONDS", 0.6)
    monkeypatch.setattr(changes, "_LOOK_SECONDS", 0.01)
    faithful, silent = PullModel(call(), "phi"), PullModel(call(), "other")
    frontends[0].send(faithful)
    frontends[1].send(silent)
    async with asyncio.timeout(PATIENCE):
        while gated.ended != ["other"]:
            frontends[0].send(faithful)
            await asyncio.sleep(0.02)
    for _ in range(20):
        frontends[0].send(faithful)
        await asyncio.sleep(0.02)
    assert gated.ended == ["other"]
    frontends[0].close()
    await until(lambda: gated.ended == ["other", "phi"])


async def test_a_repeated_question_gets_the_last_word_again(
    gated: Gated, frontend: Frontend
) -> None:
    order = PullModel(call(), "phi")
    frontend.send(order)
    await until(lambda: gated.report)
    frontend.send(order)
    assert await frontend.hear(order.call) == Progress(order.call, "pulling manifest")
    gated.report("verifying sha256 digest")
    await until(lambda: len(frontend.heard) == 2)
    frontend.send(order)
    await until(lambda: len(frontend.heard) == 3)
    assert frontend.heard[2] == Progress(order.call, "verifying sha256 digest")
    gated.gate.set()
    await frontend.hear(order.call, Changed)
    frontend.send(order)
    await until(lambda: len(frontend.of(order.call, Changed)) == 2)
    assert gated.begun == 1


async def test_progress_is_told_at_a_bounded_rate_and_its_last_word_always(
    gated: Gated, frontend: Frontend
) -> None:
    order = PullModel(call(), "phi")
    frontend.send(order)
    await until(lambda: gated.report)
    for count in range(1001):
        for blob in ("a", "b"):
            gated.report(f"pulling {blob}", f"sha256:{blob}", 1000, count)
    gated.report("verifying sha256 digest")
    gated.report("success")
    gated.gate.set()
    await frontend.hear(order.call, Changed)
    told = frontend.of(order.call)
    assert len(told) < 50
    last = sorted((line.status, line.completed) for line in told[-5:-3])
    assert last == [("pulling a", 1000), ("pulling b", 1000)]
    assert [line.status for line in told[-3:-1]] == ["verifying sha256 digest", "success"]
    assert told[-1] == Changed(order.call)


async def test_a_line_that_came_too_soon_is_told_without_another_one(
    gated: Gated, frontend: Frontend
) -> None:
    order = PullModel(call(), "phi")
    frontend.send(order)
    await until(lambda: gated.report)
    for count in (1, 2, 3):
        gated.report("pulling a", "sha256:a", 10, count)
    await until(lambda: frontend.heard and frontend.heard[-1].completed == 3)


async def test_lines_are_remembered_within_a_bound(
    gated: Gated, frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_MOST_LINES", 10)
    frontend.send(PullModel(call(), "phi"))
    await until(lambda: gated.report)
    for count in range(100):
        gated.report(f"pulling {count}", f"sha256:{count}", 10, 10)
    late = PullModel(call(), "phi")
    frontend.send(late)
    await frontend.hear(late.call)
    gated.gate.set()
    await frontend.hear(late.call, Changed)
    assert [line.status for line in frontend.of(late.call, Progress)] == [
        f"pulling {count}" for count in range(90, 100)
    ]


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (PronkError(Code.REGISTRY_FAILED, "it refused"), Code.REGISTRY_FAILED),
        (PronkError(Code.STORAGE_FULL, "no room", retry_after=3.0), Code.STORAGE_FULL),
        (RuntimeError("/secret/path"), Code.INTERNAL),
        (OSError(28, "No space", "/secret/path"), Code.INTERNAL),
    ],
)
async def test_a_change_that_fails_is_told_to_all_without_secrets(
    gated: Gated, frontends: list[Frontend], fault: BaseException, code: Code
) -> None:
    orders = [PullModel(call(), "phi") for _ in frontends]
    for frontend, order in zip(frontends, orders, strict=True):
        frontend.send(order)
        frontend.send(order)
        await frontend.hear(order.call)
    gated.result = fault
    gated.gate.set()
    for frontend, order in zip(frontends, orders, strict=True):
        failed = await frontend.hear(order.call, *ENDS)
        assert isinstance(failed, CallFailed)
        assert failed.failure.code is code
        assert "secret" not in failed.failure.message
    assert gated.begun == 1
    # The next one begins anew.
    gated.result = None
    again = PullModel(call(), "phi")
    assert await frontends[0].ask(again, *ENDS) == Changed(again.call)


async def test_what_is_beyond_the_bounds_is_told_to_come_back(
    gated: Gated, frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MAX_LONG", 2)
    monkeypatch.setattr(changes, "MAX_LISTENERS", 3)
    frontend.send(PullModel(call(), "a"))
    frontend.send(PushModel(call(), "a"))
    error = await refused(frontend, PullModel(call(), "b"))
    assert error.code is Code.UNAVAILABLE
    assert error.retry_after
    frontend.send(PullModel(call(), "a"))
    assert (await refused(frontend, PullModel(call(), "a"))).code is Code.UNAVAILABLE


async def test_what_is_no_name_is_refused_before_anything_begins(
    gated: Gated, frontend: Frontend
) -> None:
    for name in ("", "../x", "a/b/c/d", "x" * 200, "C:\\x", "a\0b"):
        error = await refused(frontend, PullModel(call(), name))
        assert error.code is Code.INVALID_REQUEST
    assert gated.begun == 0


async def test_the_end_of_one_call_is_nobody_elses_business(
    gated: Gated, frontends: list[Frontend]
) -> None:
    order = PullModel(call(), "phi")
    frontends[0].send(order)
    await until(lambda: gated.begun)
    frontends[1].send(StopCall(order.call))
    frontends[1].send(StopCall(call()))
    frontends[1].send(ListModels(call()))
    await until(lambda: frontends[1].heard)
    assert gated.ended == []


async def test_who_waits_for_a_change_that_broke_off_from_within_is_told(
    gated: Gated, frontend: Frontend
) -> None:
    gated.result = asyncio.CancelledError()
    gated.gate.set()
    error = await refused(frontend, PullModel(call(), "phi"))
    assert error.code is Code.UNAVAILABLE
    gated.result = None
    order = PullModel(call(), "phi")
    assert await frontend.ask(order, *ENDS) == Changed(order.call)


async def test_what_a_change_says_when_the_process_ends_reaches_nobody(
    make_store: MakeStore, frontend: Frontend
) -> None:
    gated = Gated()
    store = make_store({PullModel: gated})
    gated.may_end.clear()
    frontend.send(PullModel(call(), "phi"))
    await until(lambda: gated.begun)
    store.close()
    assert gated.report
    gated.report("writing manifest")  # does not raise, though the socket is closed
    gated.may_end.set()
    await store.wait_closed()
    assert gated.ended == ["phi"]


async def test_nobody_is_told_of_changes_that_end_with_the_process(
    make_store: MakeStore, frontend: Frontend
) -> None:
    gated = Gated()
    store = make_store({PullModel: gated})
    order = PullModel(call(), "phi")
    frontend.send(order)
    await until(lambda: gated.begun)
    store.close()
    await store.wait_closed()
    assert gated.ended == ["phi"]
    # The next process goes on with it.
    again = Gated()
    make_store({PullModel: again})
    async with asyncio.timeout(PATIENCE):
        while not again.begun:
            frontend.send(order)
            await asyncio.sleep(0.02)
    again.gate.set()
    assert await frontend.hear(order.call, *ENDS) == Changed(order.call)


HANGS = """
import threading
from pronk.workers.store import orders, service
def hang(self, name):
    print("asked", flush=True)
    threading.Event().wait()
orders.Shelf._delete = hang
service.main()
"""


async def test_sigterm_ends_the_process_in_the_middle_of_a_change(
    state: StateDirectory, ollama: Ollama, weights: bytes, frontend: Frontend
) -> None:
    ollama.add(PHI, weights)
    environment = {
        "PRONK_STATE": str(state.root),
        "PRONK_MODELS": str(ollama.root),
        "HOME": str(state.root),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HANGS, env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout
        line = asyncio.create_task(process.stdout.readline())
        order = DeleteModel(call(), "phi")
        while not line.done():
            frontend.send(order)
            await asyncio.wait({line}, timeout=0.2)
        assert line.result() == b"asked\n"
        process.terminate()
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
    finally:
        with suppress(ProcessLookupError):
            process.kill()
