"""Peers that say anything at any moment: the store goes on, and keeps nothing of theirs."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

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
from pronk.protocol.messages.uploads import (
    BeginUpload,
    EndUpload,
    FindBlob,
    Uploaded,
    UploadPart,
)
from pronk.protocol.state import StateDirectory
from pronk.workers.store.catalog import Catalog
from pronk.workers.store.layout import Library
from pronk.workers.store.orders import Shelf
from pronk.workers.store.report import Report
from pronk.workers.store.service import Store
from pronk.workers.store.uploads import Uploads
from pronk.workers.store.writing import Writer
from support.calls import Frontend, call, until
from support.store import Ollama
from support.writing import digest_of, written

MESSAGES = 400
NAMES = ["phi", "PHI", "eva/two", "../x", "", "demo", "h:80/a/b:c", "x" * 512]


@pytest.fixture
def draw() -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


async def test_questions_about_changes(
    state: StateDirectory, ollama: Ollama, weights: bytes, draw: random.Random
) -> None:
    library, writer = Library(ollama.root), Writer(ollama.root)
    written(writer, "phi", weights)

    async def pull(order: Any, report: Report) -> None:
        for count in range(draw.randrange(20)):
            report("pulling 0", f"sha256:{draw.randrange(3)}", 20, count)
            await asyncio.sleep(0)
        if draw.random() < 0.2:
            raise RuntimeError

    runs = {**Shelf(library, writer, None).runs(), PullModel: pull, PushModel: pull}
    store = Store(state.store, Catalog(library, None), runs)
    frontends = [Frontend(state.store) for _ in range(3)]
    try:
        calls = [call() for _ in range(30)]
        for _ in range(MESSAGES):
            own, name = draw.choice(calls), draw.choice(NAMES)
            kinds = [
                PullModel(own, name, draw.random() < 0.5),
                PushModel(own, name),
                CopyModel(own, name, draw.choice(NAMES)),
                DeleteModel(own, name),
                StopCall(own),
                Progress(own, "success"),
                Changed(own),
                UploadPart(own, 0),
            ]
            draw.choice(frontends).send(draw.choice(kinds))
            if draw.random() < 0.1:
                await asyncio.sleep(0)
        for frontend in frontends:
            last = await frontend.ask(PullModel(call(), "new"), Changed, CallFailed)
            assert last
            assert isinstance(await frontend.ask(ListModels(call())), ModelList)
        for frontend in frontends:
            for own in calls:
                frontend.send(StopCall(own))
        await until(lambda: not store.changes_under_way)
    finally:
        for frontend in frontends:
            frontend.close()
        store.close()
        await store.wait_closed()


async def test_files(state: StateDirectory, ollama: Ollama, draw: random.Random) -> None:
    writer = Writer(ollama.root)
    writer.keep(b"{}")
    uploads = Uploads(state.uploads, writer)
    frontends = [Frontend(state.uploads) for _ in range(3)]
    try:
        calls = [call() for _ in range(20)]
        content = draw.randbytes(1000)
        for _ in range(MESSAGES):
            own = draw.choice(calls)
            offset = draw.choice([0, 0, 1, 500, 1000, 2**62])
            digest = draw.choice([digest_of(content), "0" * 64])
            kinds = [
                (BeginUpload(own, digest, draw.choice([None, 0, 1000, 2**62])), b""),
                (UploadPart(own, offset), content[: draw.choice([0, 1, 500, 1000])]),
                (EndUpload(own, offset), b""),
                (FindBlob(own, digest), b""),
                (StopCall(own), b""),
                (Uploaded(own), b"x"),
                (ListModels(own), b""),
            ]
            draw.choice(frontends).send(*draw.choice(kinds))
            if draw.random() < 0.3:
                await asyncio.sleep(0.001)
        for frontend in frontends:
            for own in calls:
                frontend.send(StopCall(own))
            # Whatever came of it, what is found is what it should be.
            await frontend.ask(FindBlob(call(), digest_of(content)))
        await until(lambda: not list((ollama.root / ".pronk" / "uploads").iterdir()))
        path = writer.find(digest_of(content))
        assert path is None or path.read_bytes() == content
        assert writer.find("0" * 64) is None
    finally:
        for frontend in frontends:
            frontend.close()
        uploads.close()
        await uploads.wait_closed()
