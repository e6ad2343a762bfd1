"""A real worker process that is told what makes no sense goes on, and answers what does."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pronk.protocol.channels import Router
from pronk.protocol.codec import encode
from pronk.protocol.messages import MESSAGES
from pronk.protocol.messages.fleet import Hello
from pronk.protocol.messages.generation import (
    Caller,
    Finished,
    Generate,
    GenerateBody,
    Kind,
    SamplingOptions,
)
from pronk.protocol.messages.library import ModelDetails, ModelFacts
from pronk.protocol.messages.placement import Load, Loaded
from pronk.protocol.state import StateDirectory
from support.models import write_reciting_model
from support.stage import PATIENCE
from support.wire import DIGESTS, message

ENDINGS = {"Unload", "Refused", "BeginDraining"}
"""What rightly ends a worker."""

TOLD = st.one_of(
    st.one_of([message(name) for name in sorted(MESSAGES) if name not in ENDINGS]),
    message("Generate", digest=st.just(DIGESTS[0])),
    message("Embed", digest=st.just(DIGESTS[0])),
    message("Cancel"),
)
BODIES = (
    st.binary(max_size=30) | message("GenerateBody").map(encode) | message("EmbedBody").map(encode)
)
DETAILS = ModelDetails("", "gguf", "llama", ["llama"], "1M", "F32")


class Stand:
    """A worker process with a model, and this test as its scheduler and its frontend."""

    def __init__(self, root: Path) -> None:
        self._state = StateDirectory(root)
        self._state.prepare()
        self._log = root / "worker.log"
        self._weights = root / "reciter.gguf"
        write_reciting_model(self._weights, ["01234"], context=64)
        self._told: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._scheduler = Router(
            self._state.scheduler,
            lambda peer, message, body: self._told.put_nowait((peer, message)),
        )
        self._frontend = Router(
            self._state.frontend("f" * 16),
            lambda peer, message, body: self._answers.put_nowait(message),
        )

    async def start(self) -> None:
        environment = {
            **{name: value for name, value in os.environ.items() if "PRONK" not in name},
            "PRONK_STATE": str(self._state.root),
        }
        command = ["-m", "pronk.workers", "worker", "--name", "w-0"]
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *command, env=environment, stderr=log
            )
        self._worker, _ = await self._hear(Hello)
        facts = ModelFacts("reciter:latest", DIGESTS[0], str(self._weights), 1, 64, DETAILS)
        self.tell(Load(facts, 64, threads=1, parallel=2))
        await self._hear(Loaded)

    async def _hear(self, kind: type[Any]) -> tuple[str, Any]:
        async with asyncio.timeout(PATIENCE):
            while True:
                peer, message = await self._told.get()
                if isinstance(message, kind):
                    return peer, message

    def tell(self, message: Any, body: bytes = b"") -> None:
        assert self._scheduler.send(self._worker, message, body)

    async def is_well(self) -> None:
        """Returns once the worker has answered a request, which it may first have no slot for."""
        body = GenerateBody(
            Kind.COMPLETION, SamplingOptions(temperature=0, num_predict=3), prompt="0", raw=True
        )
        async with asyncio.timeout(PATIENCE):
            while True:
                header = Generate(
                    uuid4().hex,
                    1,
                    "reciter:latest",
                    DIGESTS[0],
                    Caller(),
                    "f" * 16,
                    self._state.frontend("f" * 16),
                    seed=1,
                    cost=1,
                )
                self.tell(header, encode(body))
                while (answer := await self._answers.get()).__class__.__name__ in (
                    "Started",
                    "Chunks",
                ):
                    pass
                if isinstance(answer, Finished):
                    assert "Traceback" not in self._log.read_text(), self._log.read_text()
                    return

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        self._scheduler.close()
        self._frontend.close()


@pytest.fixture(scope="module")
def stand() -> Iterator[tuple[asyncio.Runner, Stand]]:
    root = Path(tempfile.mkdtemp(prefix="pronk-", dir="/tmp"))

    async def make() -> Stand:
        stand = Stand(root)
        await stand.start()
        return stand

    with asyncio.Runner() as runner:
        stand = runner.run(make())
        yield runner, stand
        runner.run(stand.stop())
    shutil.rmtree(root)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(TOLD, BODIES), max_size=20))
def test_no_order_of_messages_stops_a_worker(
    stand: tuple[asyncio.Runner, Stand], messages: list[tuple[Any, bytes]]
):
    runner, worker = stand

    async def play() -> None:
        for told, body in messages:
            worker.tell(told, body)
        await worker.is_well()

    runner.run(play())
