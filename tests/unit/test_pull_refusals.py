"""A model whose file is what its digest says, and is not the GGUF file that it says it is."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.names import ModelName, parse_name
from pronk.protocol.settings import load_settings
from pronk.workers.store.layout import Library
from pronk.workers.store.pulling import verdicts
from pronk.workers.store.pulling.pull import Puller
from pronk.workers.store.registry.client import Registry
from pronk.workers.store.registry.transport import Patience
from pronk.workers.store.writing import Writer
from support.faulty import Faulty, faulty
from support.gguf_files import gguf_bytes, small_gguf, tensor
from support.small_registry import SmallRegistry, small_registry

PATIENCE = 30.0
LIE = gguf_bytes(tensor(), data=32) + b"not enough"
"""Its tensor ends behind the end of the file."""
DIGEST = hashlib.sha256(LIE).hexdigest()


class Stage:
    def __init__(self, root: Path, origin: SmallRegistry, proxy: Faulty) -> None:
        self.root = root
        self.origin = origin
        self.proxy = proxy
        self.lines: list[str] = []
        self.writer = Writer(root)
        self.registry = Registry(load_settings(), Patience(attempts=2, pause=0.01))
        self.puller = Puller(self.writer, self.registry, connections=2)

    def name(self, model: str = "m") -> ModelName:
        return parse_name(f"{self.proxy.host}/library/{model}:latest")

    def report(self, status: str, *more: object) -> None:
        self.lines.append(status)

    async def pull(self, model: str = "m") -> None:
        async with asyncio.timeout(PATIENCE):
            await self.puller.pull(self.name(model), True, self.report)

    async def refused(self, model: str = "m") -> PronkError:
        with pytest.raises(PronkError) as caught:
            await self.pull(model)
        assert caught.value.code is Code.REGISTRY_FAILED
        assert str(self.root) not in caught.value.message
        return caught.value

    def models(self) -> list[ModelName]:
        return [model.name for model in Library(self.root).models()]

    def library(self) -> set[Path]:
        """What everybody sees."""
        return {path for part in ("blobs", "manifests") for path in self.root.glob(f"{part}/**/*")}

    def files(self) -> set[str]:
        """Every blob, wherever it lies, whole or not."""
        return {path.name for path in self.root.rglob("*") if DIGEST in path.name}


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with small_registry(tmp_path / "registry") as registry, faulty(registry.host) as proxy:
        stage = Stage(tmp_path / "models", registry, proxy)
        yield stage
        stage.puller.close()
        await stage.registry.close()


async def test_a_file_that_lies_is_refused_and_nothing_of_it_stays(
    stage: Stage, tmp_path: Path
) -> None:
    stage.origin.add("library/m:latest", small_gguf(tmp_path / "good").read_bytes())
    await stage.pull()
    before = stage.library()
    stage.lines.clear()
    stage.origin.add("library/m:latest", LIE)
    error = await stage.refused()
    assert "was not added" in error.message
    assert DIGEST in error.message
    # What had the name before has it still.
    assert stage.models() == [stage.name()]
    assert stage.library() == before
    assert stage.files() == set()
    assert stage.lines[-1] == "verifying sha256 digest"


async def test_what_was_refused_is_not_fetched_again_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
    assert stage.files() == set()


async def test_what_somebody_else_needs_stays(stage: Stage) -> None:
    stage.origin.add("library/m:latest", LIE)
    with stage.writer.hold() as hold:
        hold.add(DIGEST)
        await stage.refused()
        assert stage.writer.find(DIGEST)


async def test_what_lay_in_the_library_before_stays(stage: Stage) -> None:
    blobs = stage.root / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"sha256-{DIGEST}").write_bytes(LIE)
    stage.origin.add("library/m:latest", LIE)
    await stage.refused()
    assert (blobs / f"sha256-{DIGEST}").read_bytes() == LIE


async def test_two_pulls_of_it_are_both_refused(stage: Stage) -> None:
    stage.origin.add("library/m:latest", LIE)
    stage.origin.add("library/n:latest", LIE)
    await asyncio.gather(stage.refused("m"), stage.refused("n"))
    assert stage.models() == []
    assert stage.files() == set()
