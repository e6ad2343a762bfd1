"""Following a change, whatever becomes of the store and of whoever waits for it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pronk.frontend.library import Library
from pronk.protocol import following
from pronk.protocol.errors import Code, PronkError
from pronk.protocol.following import MOST_WAITING, Steps
from pronk.protocol.messages.changes import (
    Changed,
    DeleteModel,
    Progress,
    PullModel,
    StopCall,
)
from pronk.protocol.messages.failure import Failure
from pronk.protocol.messages.library import CallFailed, ModelList
from pronk.protocol.state import StateDirectory
from support.played import DIGEST, PATIENCE, PlayedStore, until
from support.wire import message


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions are repeated at once, and as long as it takes on a busy machine."""
    monkeypatch.setattr(following, "REPEAT_SECONDS", 0.02)
    monkeypatch.setattr(following, "UNANSWERED", 3000)


@pytest.fixture
async def store(state: StateDirectory) -> AsyncIterator[PlayedStore]:
    store = PlayedStore(state)
    yield store
    store.close()


@pytest.fixture
async def library(state: StateDirectory) -> AsyncIterator[Library]:
    library = Library(state.store)
    yield library
    library.close()


async def everything(change: following.Following) -> list[Progress]:
    seen: list[Progress] = []
    while True:
        steps = await change.take()
        seen += steps.progress
        if steps.changed:
            return seen


def pulls(store: PlayedStore) -> list[PullModel]:
    return [asked for asked in store.asked if isinstance(asked, PullModel)]


async def test_the_question_is_repeated_under_one_call_and_stopped_by_nobody_at_its_end(
    store: PlayedStore, library: Library
) -> None:
    with library.pull("phi", insecure=True) as change:
        await until(lambda: len(store.asked) >= 3, "it is repeated")
        assert len({asked.call for asked in store.asked}) == 1
        call = store.asked[0].call
        store.tell(Progress(call, "success"), Changed(call))
        assert [said.status for said in await everything(change)] == ["success"]
        assert change.repeated
    with library.pull("other", insecure=False):
        await until(lambda: store.asked[-1].name == "other", "the next one is asked")
    assert StopCall(call) not in store.asked


async def test_a_store_that_is_restarted_goes_on(
    state: StateDirectory, store: PlayedStore, library: Library
) -> None:
    store.on_change = lambda asked: [Progress(asked.call, "pulling manifest")]
    with library.pull("phi", insecure=False) as change:
        assert (await change.take()).progress[0].status == "pulling manifest"
        store.close()
        other = PlayedStore(state)
        other.on_change = lambda asked: [Progress(asked.call, "success"), Changed(asked.call)]
        assert [said.status for said in await everything(change)] == ["success"]
    assert other.asked[0] == store.asked[0]
    other.close()


async def test_a_store_that_is_silent_for_long_is_unavailable(
    store: PlayedStore, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "UNANSWERED", 15)
    with library.pull("phi", insecure=False) as change:
        with pytest.raises(PronkError, match="does not answer") as caught:
            await change.outcome()
        assert caught.value.code is Code.UNAVAILABLE
        assert caught.value.retry_after
    # This word comes behind all questions, however late they are read.
    await until(lambda: StopCall(store.asked[0].call) in store.asked, "it is let go")
    assert len(pulls(store)) == following.UNANSWERED


async def test_every_word_counts_against_silence(
    store: PlayedStore, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "REPEAT_SECONDS", 0.05)
    monkeypatch.setattr(following, "UNANSWERED", 15)

    def busy(asked: Any) -> list[Any]:
        if len(pulls(store)) < following.UNANSWERED + 5:
            return [Progress(asked.call, "verifying sha256 digest")]
        return [Changed(asked.call)]

    store.on_change = busy
    with library.pull("phi", insecure=False) as change:
        said = await everything(change)
    # The same line again is the answer to a repeated question, and no news.
    assert [line.status for line in said] == ["verifying sha256 digest", "success"]


async def test_a_line_is_said_again_after_a_long_time_for_the_proxies_on_its_way(
    store: PlayedStore, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "KEEP_ALIVE_SECONDS", 0.05)
    store.on_change = lambda asked: [Progress(asked.call, "verifying sha256 digest")]
    with library.pull("phi", insecure=False) as change:
        for _ in range(3):
            (said,) = (await change.take()).progress
            assert said.status == "verifying sha256 digest"


async def test_who_leaves_early_stops_it(store: PlayedStore, library: Library) -> None:
    with library.pull("phi", insecure=False):
        await until(lambda: store.asked, "it is asked")
    await until(lambda: StopCall(store.asked[0].call) in store.asked, "it is stopped")
    asked = len(store.asked)
    await asyncio.sleep(0.1)
    assert len(store.asked) == asked


async def test_a_slow_reader_gets_the_newest_of_each_and_the_last_line_of_all(
    store: PlayedStore, library: Library
) -> None:
    with library.pull("phi", insecure=False) as change:
        await until(lambda: store.asked, "it is asked")
        call = store.asked[0].call
        for number in range(1, 1001):
            store.tell(Progress(call, "pulling aaaaaaaaaaaa", "sha256:a", 1000, number))
        for number in range(2 * MOST_WAITING):
            store.tell(Progress(call, "pulling b", f"sha256:{number}", 7, 7))
        store.tell(Progress(call, "success"), Changed(call))
        await until(lambda: change._end, "everything has arrived")
        steps = await change.take()
    assert steps.changed
    assert len(steps.progress) == MOST_WAITING
    assert steps.progress[-1] == Progress(call, "success")
    assert steps.progress[-2].digest == f"sha256:{2 * MOST_WAITING - 1}"


async def test_success_is_told_when_it_is_true(store: PlayedStore, library: Library) -> None:
    with library.pull("phi", insecure=False) as change:
        await until(lambda: store.asked, "it is asked")
        call = store.asked[0].call
        store.tell(Progress(call, "writing manifest"), Progress(call, "success"))
        store.tell(Progress(call, "a last word"))
        seen: list[str] = []
        while "a last word" not in seen:
            seen += [said.status for said in (await change.take()).progress]
        store.tell(Changed(call))
        seen += [said.status for said in await everything(change)]
    assert seen == ["writing manifest", "a last word", "success"]


async def test_what_was_said_before_a_failure_is_read_first(
    store: PlayedStore, library: Library
) -> None:
    store.on_change = lambda asked: [
        Progress(asked.call, "pulling manifest"),
        CallFailed(asked.call, Failure(Code.STORAGE_FULL, "no room")),
        Changed(asked.call),
    ]
    with library.pull("phi", insecure=False) as change:
        await until(lambda: change._end, "everything has arrived")
        assert await change.take() == Steps(
            [Progress(store.asked[0].call, "pulling manifest")], None
        )
        for _ in range(2):
            with pytest.raises(PronkError, match="no room"):
                await change.take()


async def test_an_answer_of_another_kind_ends_it(store: PlayedStore, library: Library) -> None:
    store.on_change = lambda asked: [ModelList(asked.call, [])]
    with pytest.raises(PronkError, match="another kind"):
        await library.delete("phi")


async def test_a_name_that_is_gone_at_the_second_question_has_been_deleted(
    state: StateDirectory, store: PlayedStore, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(asked: DeleteModel) -> list[Any]:
        return [CallFailed(asked.call, Failure(Code.NOT_FOUND, "not found"))]

    store.on_change = gone
    with monkeypatch.context() as patch:
        patch.setattr(following, "REPEAT_SECONDS", 3600.0)
        with pytest.raises(PronkError, match="not found"):
            await library.delete("phi")
    store.on_change = lambda asked: []
    deleting = asyncio.create_task(library.delete("phi"))
    await until(lambda: len(store.asked) >= 2, "it is asked")
    store.close()  # in the middle of it
    other = PlayedStore(state)
    other.on_change = gone
    assert await deleting is None
    other.close()


async def test_what_a_change_left_without_a_name_is_told(
    store: PlayedStore, library: Library
) -> None:
    store.on_change = lambda asked: [Changed(asked.call, DIGEST)]
    changed = await library.copy("a", "b")
    assert changed.unnamed == DIGEST


ANY = st.one_of(
    message("Progress", call=st.just(""), status=st.sampled_from(["a", "b", "success"])),
    message("Progress", call=st.just("")),
    message("Changed", call=st.just("")),
    message("CallFailed", call=st.just("")),
    message("ModelList", call=st.just("")),
    st.just("taken"),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(ANY, max_size=30))
def test_no_order_of_messages_keeps_anybody_waiting(said: list[Any]) -> None:
    async def play(directory: str) -> None:
        library = Library(f"ipc://{directory}/nobody.sock")
        with library.pull("phi", insecure=False) as change:
            taken: list[Progress] = []
            for something in [*said, Changed("")]:
                if something == "taken":
                    if change._ready.is_set() and change._end is None:
                        taken += (await change.take()).progress
                else:
                    library._questions._received(replace(something, call=change._call), b"")
            try:
                taken += await asyncio.wait_for(everything(change), PATIENCE)
                assert taken[-1].status == "success"
                failed = False
            except PronkError:
                failed = True
            assert [line.status for line in taken[:-1]].count("success") == 0
            ends = [type(one) for one in said if not isinstance(one, (Progress, str))]
            assert failed is bool(ends and ends[0] is not Changed)
        library.close()

    with tempfile.TemporaryDirectory(prefix="pronk-", dir="/tmp") as directory:
        asyncio.run(play(directory))


async def test_at_shutdown_everything_is_told_why(store: PlayedStore, library: Library) -> None:
    with library.pull("phi", insecure=False) as change:
        await until(lambda: store.asked, "it is asked")
        library.end_all(PronkError(Code.UNAVAILABLE, "shutting down", retry_after=5.0))
        with pytest.raises(PronkError, match="shutting down"):
            await change.take()
    await until(lambda: StopCall(store.asked[0].call) in store.asked, "the store is told")
