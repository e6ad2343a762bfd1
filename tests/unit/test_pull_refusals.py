"""A model whose file is what its digest says, and is not the GGUF file that it says it is."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pronk.protocol.errors import Code
from pronk.workers.store.pulling import verdicts
from support.gguf_files import gguf_bytes, small_gguf, tensor
from support.pulls import PullStage, pull_stage

LIE = gguf_bytes(tensor(), data=32) + b"not enough"
"""Its tensor ends behind the end of the file."""
DIGEST = hashlib.sha256(LIE).hexdigest()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[PullStage]:
    async with pull_stage(tmp_path) as stage:
        yield stage


async def test_a_file_that_lies_is_refused_and_nothing_of_it_stays(
    stage: PullStage, tmp_path: Path
) -> None:
    stage.origin.add("library/m:latest", small_gguf(tmp_path / "good").read_bytes())
    await stage.pull()
    before = stage.library()
    stage.lines.clear()
    stage.origin.add("library/m:latest", LIE)
    error = await stage.refused()
    assert error.code is Code.REGISTRY_FAILED
    assert "was not added" in error.message
    assert DIGEST in error.message
    # What had the name before has it still.
    assert stage.models() == [stage.name()]
    assert stage.library() == before
    assert stage.files(DIGEST) == set()
    assert stage.lines[-1] == "verifying sha256 digest"


async def test_what_was_refused_is_not_fetched_again_at_once(
    stage: PullStage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage.origin.add("library/m:latest", LIE)
    error = await stage.refused()
    sent = stage.proxy.sent[DIGEST]
    assert str(await stage.refused()) == str(error)
    assert stage.proxy.sent[DIGEST] == sent
    # A registry that has mended it is believed at once.
    stage.origin.add("library/m:latest", small_gguf(tmp_path / "good").read_bytes())
    await stage.pull()
    assert stage.models() == [stage.name()]
    stage.origin.add("library/m:latest", LIE)
    clock = verdicts.time.monotonic() + verdicts.KEPT_SECONDS
    with monkeypatch.context() as patch:
        patch.setattr(verdicts, "_now", lambda: clock)
        await stage.refused()
    assert stage.proxy.sent[DIGEST] == 2 * sent
    assert stage.files(DIGEST) == set()


async def test_what_somebody_else_needs_stays(stage: PullStage) -> None:
    stage.origin.add("library/m:latest", LIE)
    with stage.writer.hold() as hold:
        hold.add(DIGEST)
        await stage.refused()
        assert stage.writer.find(DIGEST)


async def test_what_lay_in_the_library_before_stays(stage: PullStage) -> None:
    blobs = stage.root / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"sha256-{DIGEST}").write_bytes(LIE)
    stage.origin.add("library/m:latest", LIE)
    await stage.refused()
    assert (blobs / f"sha256-{DIGEST}").read_bytes() == LIE


async def test_two_pulls_of_it_are_both_refused(stage: PullStage) -> None:
    stage.origin.add("library/m:latest", LIE)
    stage.origin.add("library/n:latest", LIE)
    await asyncio.gather(stage.refused("m"), stage.refused("n"))
    assert stage.models() == []
    assert stage.files(DIGEST) == set()
