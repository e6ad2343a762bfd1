"""Fixtures of the unit tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from pronk.protocol.state import StateDirectory
from pronk.workers.store.builtin import BuiltinModel
from pronk.workers.store.catalog import Catalog
from pronk.workers.store.layout import Library
from support.cli import Pronk
from support.cli import pronk as run_pronk
from support.keys import Hosts
from support.played import Stack, running
from support.played_api import PlayedApi, played_api
from support.stage import Stage, StageMaker
from support.store import Ollama, tiny_gguf


@pytest.fixture
def state() -> Iterator[StateDirectory]:
    # A Unix socket's path is short: pytest's own temporary directories can be too long for it.
    root = Path(tempfile.mkdtemp(prefix="pronk-", dir="/tmp"))
    directory = StateDirectory(root)
    directory.prepare()
    yield directory
    shutil.rmtree(root)


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


@pytest.fixture
async def stack(state: StateDirectory) -> AsyncIterator[Stack]:
    async with running(state) as stack:
        yield stack


@pytest.fixture
async def make_stage() -> AsyncIterator[StageMaker]:
    stages: list[Stage] = []
    with tempfile.TemporaryDirectory(prefix="pronk-", dir="/tmp") as directory:

        def make(**settings: Any) -> Stage:
            stages.append(Stage(directory, **settings))
            return stages[-1]

        yield make
        for stage in stages:
            stage.close()


@pytest.fixture
async def stage(make_stage: StageMaker) -> Stage:
    return make_stage()


@pytest.fixture
def ollama(tmp_path: Path) -> Ollama:
    return Ollama(tmp_path / "models")


@pytest.fixture
def weights(tmp_path: Path) -> bytes:
    return tiny_gguf(tmp_path / "tiny.gguf").read_bytes()


@pytest.fixture
def catalog(ollama: Ollama) -> Catalog:
    return Catalog(Library(ollama.root), None)


@pytest.fixture
def demo(tmp_path: Path) -> BuiltinModel:
    return BuiltinModel(tiny_gguf(tmp_path / "demo.gguf", context=512))


@pytest.fixture
def api() -> Iterator[PlayedApi]:
    """What commands talk to: a server that plays its part, with the model `m`."""
    with played_api() as api:
        api.models["m"] = {"capabilities": ["completion"]}
        yield api


@pytest.fixture
def pronk(api: PlayedApi, monkeypatch: pytest.MonkeyPatch) -> Pronk:
    """Runs a command against the played API."""
    monkeypatch.setenv("PRONK_HOST", api.url)
    return run_pronk
