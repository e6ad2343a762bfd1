"""A real worker process, beside a scheduler and a frontend that the test plays."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from pronk.protocol.channels import Router
from pronk.protocol.codec import encode
from pronk.protocol.messages.embedding import Embed, EmbedBody
from pronk.protocol.messages.fleet import Hello
from pronk.protocol.messages.generation import (
    Caller,
    ChatMessage,
    Chunks,
    Failed,
    Finished,
    Generate,
    GenerateBody,
    Kind,
    SamplingOptions,
)
from pronk.protocol.messages.library import ModelDetails, ModelFacts
from pronk.protocol.messages.placement import Load, Loaded, LoadFailed
from pronk.protocol.state import StateDirectory
from support.models import write_reciting_model

CHAIN = "abcdéfghij"
DIGEST = "d" * 64
CONTEXT = 32768
"""Large enough that an endless answer is still going on whenever a test gets to it."""

PATIENCE = 60.0
"""Seconds after which a test that waits in vain gives up: far above what a slow machine needs."""


class Inbox:
    """What arrived at a socket, in order, to be waited for by kind."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, Any]] = []
        self._changed = asyncio.Event()

    def take(self, peer: str, message: Any, body: bytes) -> None:
        self.messages.append((peer, message))
        self._changed.set()

    async def wait(self, kind: type[Any], where: Callable[[Any], bool] = lambda m: True) -> Any:
        """The first message of a kind, removed with everything before it."""
        async with asyncio.timeout(PATIENCE):
            while True:
                for place, (_, message) in enumerate(self.messages):
                    if isinstance(message, kind) and where(message):
                        del self.messages[: place + 1]
                        return message
                self._changed.clear()
                await self._changed.wait()


class Stage:
    """A scheduler and a frontend as a worker sees them, and the worker's process."""

    def __init__(self, root: Path) -> None:
        self.state = StateDirectory(root / "s")
        self.state.prepare()
        self.inbox = Inbox()
        self.reply = Inbox()
        self.boot_id = "b" * 16
        self.frontend_id = "f" * 16
        self.scheduler = Router(self.state.scheduler, self.inbox.take)
        self.frontend = Router(self.state.frontend(self.frontend_id), self.reply.take)
        self.process: asyncio.subprocess.Process | None = None
        self.worker = ""

    async def start_worker(self) -> Hello:
        environment = {
            **{name: value for name, value in os.environ.items() if "PRONK" not in name},
            "PRONK_STATE": str(self.state.root),
        }
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pronk.workers", "worker", "--name", "w-0", env=environment
        )
        hello = await self.inbox.wait(Hello)
        self.worker = hello.incarnation
        return hello

    def tell(self, message: Any, body: bytes = b"") -> None:
        assert self.scheduler.send(self.worker, message, body)

    async def load(self, weights: Path, parallel: int = 1, **modelfile: Any) -> Any:
        """Has the worker load a model; `modelfile` are the fields of `ModelFacts` about that."""
        details = ModelDetails("", "gguf", "llama", ["llama"], "1M", "F32")
        facts = ModelFacts("reciter:latest", DIGEST, str(weights), 1, CONTEXT, details, **modelfile)
        self.tell(Load(facts, CONTEXT, threads=1, parallel=parallel))
        return await self.inbox.wait((Loaded, LoadFailed))  # type: ignore[arg-type]

    def ask(self, body: GenerateBody, **changes: Any) -> tuple[str, int]:
        header = Generate(
            **{
                "request": uuid4().hex,
                "attempt": 1,
                "model": "reciter:latest",
                "digest": DIGEST,
                "caller": Caller(),
                "frontend": self.frontend_id,
                "reply_to": self.state.frontend(self.frontend_id),
                "seed": 7,
                "cost": 1,
                **changes,
            }
        )
        self.tell(header, encode(body))
        return header.request, header.attempt

    def ask_vectors(self, body: EmbedBody | GenerateBody) -> str:
        header = Embed(
            request=uuid4().hex,
            attempt=1,
            model="encoder:latest",
            digest=DIGEST,
            caller=Caller(),
            frontend=self.frontend_id,
            reply_to=self.state.frontend(self.frontend_id),
            cost=1,
        )
        self.tell(header, encode(body))
        return header.request

    async def answer(self, first: int = 0) -> tuple[list[int], str, Any]:
        """Tokens and text up to the end of the answer, and what ended it. `first` is the index of
        its first token.
        """
        tokens, text = list[int](), ""
        while True:
            message = await self.reply.wait((Chunks, Finished, Failed))  # type: ignore[arg-type]
            if not isinstance(message, Chunks):
                return tokens, text, message
            (chunk,) = message.chunks
            assert chunk.index == first + len(tokens), "the index counts tokens without a gap"
            tokens += chunk.tokens
            text += chunk.text

    async def exit_status(self) -> int:
        assert self.process
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()

    async def close(self) -> None:
        if self.process and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
        self.scheduler.close()
        self.frontend.close()


@contextlib.asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    """A stage in a directory of its own."""
    with tempfile.TemporaryDirectory() as root:  # pytest's own are too deep for a socket
        stage = Stage(Path(root))
        try:
            yield stage
        finally:
            await stage.close()


def write_reciter(directory: Path) -> Path:
    """A model that answers a chat with `CHAIN`, and `endless` without an end."""
    path = directory / "reciter.gguf"
    write_reciting_model(path, [CHAIN, "xyx"], context=CONTEXT)
    return path


def chat(content: str = "hello", **options: Any) -> GenerateBody:
    return GenerateBody(
        Kind.CHAT, SamplingOptions(**options), messages=[ChatMessage("user", content)]
    )


def endless() -> GenerateBody:
    """A prompt after which the model says xyxyxy… until the context is full."""
    return GenerateBody(Kind.COMPLETION, SamplingOptions(temperature=0), prompt="x", raw=True)
