"""Pulls that are cancelled at any moment, meet deletes, or fill a real disk."""

from __future__ import annotations

import asyncio
import hashlib
import random
import subprocess
import threading
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from pronk.protocol.errors import Code
from pronk.workers.store.pulling import partial
from support.calls import until
from support.faulty import Fault
from support.pulls import PATIENCE, PullStage, pull_stage

KIB, MIB = 1024, 1024 * 1024
WEIGHTS = random.Random(11).randbytes(300 * KIB)
DIGEST = hashlib.sha256(WEIGHTS).hexdigest()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[PullStage]:
    async with pull_stage(tmp_path) as stage:
        yield stage


def open_files(root: Path) -> list[str]:
    """What this process has open below a directory, but for the library's lock."""
    found: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            path = str(descriptor.readlink())
        except FileNotFoundError:
            continue
        if path.startswith(str(root)) and not path.endswith("/lock"):
            found.append(path)
    return found


@types.coroutine
def counted(work: Coroutine[Any, Any, Any], waits: Callable[[], None]):
    """Does the work, and says each time that it is about to wait for something."""
    step, given = work.send, None
    while True:
        try:
            waited_for = step(given)
        except StopIteration as end:
            return end.value
        waits()
        try:
            step, given = work.send, (yield waited_for)
        except BaseException as error:
            step, given = work.throw, error


class Cancelled:
    """A pull that is cancelled when it waits for the n-th time, and `again` waits later."""

    def __init__(self, work: Coroutine[Any, Any, Any], moment: int, again: int) -> None:
        self._moments = {moment, moment + again}
        self._waits = 0
        self.task = asyncio.ensure_future(self._run(work))

    async def _run(self, work: Coroutine[Any, Any, Any]) -> None:
        await counted(work, self._cancel)

    def _cancel(self) -> None:
        self._waits += 1
        if self._waits in self._moments:
            self.task.cancel()


@pytest.mark.parametrize("again", [0, 1])
async def test_cancelled_at_any_await_it_lets_go_of_everything_and_the_next_one_succeeds(
    stage: PullStage, monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    monkeypatch.setattr(partial, "JOURNALED", 64 * KIB)
    moment = 0
    while True:
        moment += 1
        # Another blob each time: what came before is not there already.
        stage.origin.add("library/m:latest", WEIGHTS + moment.to_bytes(4))
        pull = Cancelled(stage.pull(), moment, again)
        await asyncio.wait([pull.task], timeout=PATIENCE)
        if not pull.task.cancelled():
            await pull.task
            break
        assert not stage.puller._turns
        assert not stage.writer._holds.digests()
        await until(lambda: not open_files(stage.root))
        for path in (stage.root / "blobs").glob("*"):
            assert f"sha256-{hashlib.sha256(path.read_bytes()).hexdigest()}" == path.name
    assert moment > 20
    assert stage.models() == [stage.name()]


async def test_a_model_that_is_deleted_while_its_next_version_comes(stage: PullStage) -> None:
    stage.origin.add("library/m:latest", WEIGHTS)
    await stage.pull()
    new = WEIGHTS + b"new"
    digest = hashlib.sha256(new).hexdigest()
    stage.origin.add("library/m:latest", new)
    gone = asyncio.Event()
    stage.proxy.fault = lambda asked: Fault(gate=gone) if asked.blob == digest else None
    pull = asyncio.create_task(stage.pull())
    await until(lambda: stage.proxy.asked_for(digest))
    await asyncio.to_thread(stage.writer.delete, stage.name())
    assert stage.models() == []
    assert stage.files(DIGEST) == set()
    gone.set()
    await pull
    assert stage.models() == [stage.name()]
    assert (stage.root / "blobs" / f"sha256-{digest}").read_bytes() == new


async def test_deletes_and_pulls_of_models_that_share_a_blob(stage: PullStage) -> None:
    for model in ("m", "n"):
        stage.origin.add(f"library/{model}:latest", WEIGHTS, model_type=model)

    async def come_and_go(model: str) -> None:
        for _ in range(4):
            await stage.pull(model)
            await asyncio.to_thread(stage.writer.delete, stage.name(model))

    await asyncio.gather(come_and_go("m"), come_and_go("n"))
    assert stage.models() == []
    # What was staged for somebody else meanwhile goes with the next change.
    await stage.pull("m")
    await stage.pull("n")
    assert len(stage.models()) == 2
    assert (stage.root / "blobs" / f"sha256-{DIGEST}").read_bytes() == WEIGHTS


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 8 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("only root may mount a small disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


async def test_a_real_disk_that_is_full_in_mid_pull(small_disk: Path, tmp_path: Path) -> None:
    weights = random.Random(12).randbytes(6 * MIB)
    digest = hashlib.sha256(weights).hexdigest()
    async with pull_stage(tmp_path, small_disk / "models") as stage:
        stage.origin.add("library/m:latest", WEIGHTS)
        await stage.pull()
        before = stage.library()
        # There is room when it begins; then somebody else fills the disk.
        stage.origin.add("library/n:latest", weights)
        filler = small_disk / "filler"

        def fill(asked: object) -> Fault | None:
            if not filler.exists():
                filler.write_bytes(bytes(4 * MIB))
            return None

        stage.proxy.fault = lambda asked: fill(asked) if asked.blob == digest else None
        error = await stage.refused("n")
        assert error.code is Code.STORAGE_FULL
        assert stage.library() == before
        assert stage.models() == [stage.name()]
        assert open_files(stage.root) == []
        # Room again, and it goes on.
        stage.proxy.fault = lambda asked: None
        filler.unlink()
        kept = stage.proxy.sent[digest]
        await stage.pull("n")
        assert stage.proxy.sent[digest] < len(weights) + kept
        assert len(stage.models()) == 2
        assert (stage.root / "blobs" / f"sha256-{digest}").read_bytes() == weights


async def test_however_often_it_is_cancelled_it_waits_for_what_it_does_to_its_file(
    stage: PullStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, may_close = threading.Event(), threading.Event()
    close = partial.Partial.close

    def slowly(self: partial.Partial) -> None:
        closing.set()
        assert may_close.wait(PATIENCE)
        close(self)

    monkeypatch.setattr(partial.Partial, "close", slowly)
    stage.origin.add("library/m:latest", WEIGHTS)
    stage.proxy.fault = lambda asked: Fault(stall=1000) if asked.blob == DIGEST else None
    pull = asyncio.create_task(stage.pull())
    await until(lambda: closing.is_set() or stage.proxy.asked_for(DIGEST))
    may_close.set()  # the config's file
    await until(lambda: stage.proxy.asked_for(DIGEST))
    closing.clear()
    may_close.clear()
    for _ in range(3):
        pull.cancel()
        await until(closing.is_set)
        await asyncio.sleep(0)
        assert not pull.done()
    assert stage.puller._turns
    may_close.set()
    await asyncio.wait([pull], timeout=PATIENCE)
    assert pull.cancelled()
    assert open_files(stage.root) == []
