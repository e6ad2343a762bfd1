"""Pulls from a small registry into a library, with a network between them that tests can break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pronk.protocol.errors import PronkError
from pronk.protocol.names import ModelName, parse_name
from pronk.protocol.settings import load_settings
from pronk.workers.store.layout import Library
from pronk.workers.store.pulling.pull import Puller
from pronk.workers.store.registry.client import Registry
from pronk.workers.store.registry.transport import Patience
from pronk.workers.store.writing import Writer

from .faulty import Faulty, faulty
from .small_registry import SmallRegistry, small_registry

PATIENCE = 30.0


class PullStage:
    """A library below `root`, a registry, and the proxy before it."""

    def __init__(self, root: Path, origin: SmallRegistry, proxy: Faulty) -> None:
        self.root = root
        self.origin = origin
        self.proxy = proxy
        self.lines: list[str] = []
        """What was reported."""
        self.writer = Writer(root)
        self.registry = Registry(load_settings(), Patience(attempts=2, pause=0.01))
        self.puller = Puller(self.writer, self.registry, connections=2)

    def name(self, model: str = "m") -> ModelName:
        """What a model of the registry is called here."""
        return parse_name(f"{self.proxy.host}/library/{model}:latest")

    def report(self, status: str, *more: object) -> None:
        """What pulls report to."""
        self.lines.append(status)

    async def pull(self, model: str = "m") -> None:
        """Pulls a model to the end."""
        async with asyncio.timeout(PATIENCE):
            await self.puller.pull(self.name(model), True, self.report)

    async def refused(self, model: str = "m") -> PronkError:
        """The error that a pull ends with."""
        with pytest.raises(PronkError) as caught:
            await self.pull(model)
        assert str(self.root) not in caught.value.message
        return caught.value

    def models(self) -> list[ModelName]:
        """What the library lists."""
        return [model.name for model in Library(self.root).models()]

    def library(self) -> set[Path]:
        """What everybody sees."""
        return {path for part in ("blobs", "manifests") for path in self.root.glob(f"{part}/**/*")}

    def files(self, digest: str) -> set[str]:
        """Every file of a blob, wherever it lies, whole or not."""
        return {path.name for path in self.root.rglob("*") if digest in path.name}


@asynccontextmanager
async def pull_stage(root: Path, library: Path | None = None) -> AsyncIterator[PullStage]:
    """A stage in directories below `root`, or with its library elsewhere."""
    async with small_registry(root / "registry") as registry, faulty(registry.host) as proxy:
        stage = PullStage(library or root / "models", registry, proxy)
        yield stage
        stage.puller.close()
        await stage.registry.close()
