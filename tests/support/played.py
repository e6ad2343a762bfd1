"""A frontend over real HTTP and real sockets, with scheduler, store and workers played here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp

from pronk.frontend.server import Frontend
from pronk.protocol.channels import Dealer, Router
from pronk.protocol.errors import Code
from pronk.protocol.messages.changes import (
    CopyModel,
    CreateModel,
    DeleteModel,
    PullModel,
    PushModel,
    StopCall,
)
from pronk.protocol.messages.embedding import Embed, Embedded
from pronk.protocol.messages.failure import Failure
from pronk.protocol.messages.fleet import (
    Hello,
    PeerHeartbeat,
    SchedulerHeartbeat,
    WhoAreYou,
)
from pronk.protocol.messages.generation import (
    Cancel,
    Chunk,
    Chunks,
    Evict,
    Evicted,
    Failed,
    Finished,
    FinishReason,
    Generate,
    Lost,
    Preload,
    Preloaded,
    Started,
)
from pronk.protocol.messages.library import (
    CallFailed,
    ListModels,
    ModelDetails,
    ModelList,
    ModelResolved,
    ModelShown,
    ModelSummary,
    ResolveModel,
    ShowModel,
)
from pronk.protocol.messages.status import ListRunning, RunningList, RunningModel
from pronk.protocol.process import new_incarnation
from pronk.protocol.settings import Settings
from pronk.protocol.state import StateDirectory

CHANGES = (PullModel, PushModel, CreateModel, CopyModel, DeleteModel, StopCall)
DIGEST = "d" * 64
DETAILS = ModelDetails("", "gguf", "llama", ["llama"], "7.1M", "Q8_0")
PATIENCE = 60.0
"""Seconds after which a test that waits in vain gives up: far above what a slow machine needs."""

QUESTION = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}


async def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of `condition`, asked again and again."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not (value := condition()):
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"waited {PATIENCE:g} s in vain: {what}") from None
    return value


class PlayedWorker:
    """Answers as a worker does: straight to the frontend."""

    def __init__(self, header: Generate | Embed, index: int = 0) -> None:
        """`index` is the number of tokens that earlier attempts made."""
        self.id = new_incarnation()
        self.header = header
        self.cancelled: list[Cancel] = []
        self._dealer = Dealer(header.reply_to, self.id, self._received)
        self._index = index

    def _received(self, message: Any, body: bytes) -> None:
        assert isinstance(message, Cancel)
        self.cancelled.append(message)

    def started(self, context_length: int = 0) -> PlayedWorker:
        key = (self.header.request, self.header.attempt)
        self._dealer.send(Started(*key, self.id, context_length))
        return self

    def says(self, *texts: str, skip: int = 0) -> PlayedWorker:
        for text in texts:
            index = self._index + skip
            chunk = Chunk(self.header.request, self.header.attempt, index, [7], text)
            self._dealer.send(Chunks([chunk]))
            self._index += 1
        return self

    def says_more(self, **said: Any) -> PlayedWorker:
        """One chunk with thinking or calls in it."""
        key = (self.header.request, self.header.attempt)
        chunk = Chunk(*key, self._index, [7], **{"text": "", **said})
        self._dealer.send(Chunks([chunk]))
        self._index += 1
        return self

    def finished(self, *, eval_count: int | None = None, context: list[int] | None = None) -> None:
        self._dealer.send(
            Finished(
                request=self.header.request,
                attempt=self.header.attempt,
                reason=FinishReason.STOP,
                eval_count=self._index if eval_count is None else eval_count,
                eval_duration=2_000,
                prompt_eval_count=5,
                prompt_eval_duration=1_000,
                context=context,
            )
        )

    def embedded(self, *rows: list[float], missing: int = 0) -> None:
        numbers = b"".join(struct.pack(f"<{len(row)}f", *row) for row in rows)
        message = Embedded(self.header.request, self.header.attempt, len(rows), len(rows[0]), 3)
        self._dealer.send(message, numbers[: len(numbers) - missing])

    def failed(self, code: Code, message: str) -> None:
        failure = Failure(code, message)
        self._dealer.send(Failed(self.header.request, self.header.attempt, failure))

    def gives_back(self) -> None:
        failure = Failure(Code.UNAVAILABLE, "the model moved")
        self._dealer.send(Lost(self.header.request, self.header.attempt, failure))

    def close(self) -> None:
        self._dealer.close()


class PlayedScheduler:
    """Collects what the frontend says, and answers each request as the test has it."""

    def __init__(self, state: StateDirectory) -> None:
        self.boot_id = new_incarnation()
        self.silent = False
        """Whether it sends no heartbeats, as if it were stopped."""
        self.peers: set[str] = set()
        self.seen: list[Any] = []
        self.bodies: dict[tuple[str, int], bytes] = {}
        self.workers: list[PlayedWorker] = []
        self.on_generate: Callable[[Generate], None] = lambda header: None
        self.on_embed: Callable[[Embed], None] = lambda header: None
        self.running: list[RunningModel] = []
        self._router = Router(state.scheduler, self._received, max_body=100 * 2**20)
        self._beating = asyncio.create_task(self._beat())

    def all(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.seen if isinstance(message, kind)]

    def worker(self, header: Generate | Embed, index: int = 0) -> PlayedWorker:
        self.workers.append(PlayedWorker(header, index))
        return self.workers[-1]

    def tell(self, message: Any) -> None:
        for peer in self.peers:
            self._router.send(peer, message)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(0.2)
            if not self.silent:
                self.tell(SchedulerHeartbeat(self.boot_id))

    def _received(self, peer: str, message: Any, body: bytes) -> None:
        if isinstance(message, Hello):
            self.peers.add(peer)
            self._router.send(peer, SchedulerHeartbeat(self.boot_id))
        elif peer not in self.peers:
            self._router.send(peer, WhoAreYou(self.boot_id))
            return
        if isinstance(message, (Generate, Embed)) and (
            (message.request, message.attempt) in self.bodies
        ):
            return  # submitted again after a silence, and known already
        if not isinstance(message, PeerHeartbeat):
            self.seen.append(message)
        match message:
            case Generate():
                self.bodies[message.request, message.attempt] = body
                self.on_generate(message)
            case Embed():
                self.bodies[message.request, message.attempt] = body
                self.on_embed(message)
            case Preload():
                self.tell(Preloaded(message.request))
            case Evict():
                self.tell(Evicted(message.request))
            case ListRunning():
                self.tell(RunningList(message.call, self.running))

    def close(self) -> None:
        self._beating.cancel()
        for worker in self.workers:
            worker.close()
        self._router.close()


class PlayedStore:
    """A library with one model. What is to be changed there, tests decide."""

    def __init__(self, state: StateDirectory) -> None:
        self.asked: list[Any] = []
        """Everything about changes, repeated questions too."""
        self.on_change: Callable[[Any], Any] = lambda message: []
        """What is said to a question about a change: any number of messages, now."""
        self.capabilities = ["completion"]
        """Of its model."""
        self._peers: dict[str, str] = {}
        self._router = Router(state.store, self._received)

    @property
    def waits(self) -> bool:
        """Whether something that it said has not been taken."""
        return bool(self._router._outboxes)

    def tell(self, *messages: Any) -> None:
        """Says more about changes that were asked for."""
        for message in messages:
            self._router.send(self._peers[message.call], message)

    def _received(self, peer: str, message: Any, body: bytes) -> None:
        if isinstance(message, CHANGES):
            self.asked.append(message)
            self._peers[message.call] = peer
            self.tell(*self.on_change(message))
        else:
            self._router.send(peer, self._answer(message))

    def _answer(self, message: Any) -> Any:
        match message:
            case ListModels(call):
                return ModelList(call, [ModelSummary("demo:latest", DIGEST, 9, 1.5e9, DETAILS)])
            case ResolveModel(call, "demo" | "demo:latest"):
                return ModelResolved(call, "demo:latest", DIGEST, self.capabilities)
            case ShowModel(call, "demo" | "demo:latest", verbose):
                return ModelShown(
                    call=call,
                    modelfile="FROM demo",
                    parameters="",
                    template="{{ .Prompt }}",
                    system="",
                    license="",
                    details=DETAILS,
                    model_info={"general.architecture": "llama"},
                    capabilities=["completion"],
                    modified_at=1.5e9,
                    tensors=[{"name": "output.weight"}] if verbose else [],
                )
        return CallFailed(message.call, Failure(Code.NOT_FOUND, "no such model"))

    def close(self) -> None:
        self._router.close()


class Stack:
    """A frontend, its played peers, and a client."""

    def __init__(self, state: StateDirectory, settings: Settings) -> None:
        self.state = state
        self.settings = settings
        self.scheduler = PlayedScheduler(state)
        self.store = PlayedStore(state)
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.frontend = Frontend(settings, listener)
        self.client = aiohttp.ClientSession(f"http://127.0.0.1:{self.port}")
        self._stopped = False

    async def stop_frontend(self) -> None:
        if not self._stopped:
            self._stopped = True
            await self.frontend.stop()

    async def close(self) -> None:
        await self.client.close()
        await self.stop_frontend()
        self.scheduler.close()
        self.store.close()

    def restart_scheduler(self) -> None:
        workers, self.scheduler.workers = self.scheduler.workers, []
        self.scheduler.close()
        self.scheduler = PlayedScheduler(self.state)
        self.scheduler.workers = workers

    def restart_store(self) -> None:
        """Another store comes, which knows nothing."""
        self.store.close()
        self.store = PlayedStore(self.state)

    async def request(self, method: str, path: str, **arguments: Any) -> tuple[int, Any, Any]:
        """Status, parsed JSON body, headers."""
        async with self.client.request(method, path, **arguments) as response:
            return response.status, json.loads(await response.read()), response.headers

    async def lines(self, path: str, question: dict[str, Any]) -> list[dict[str, Any]]:
        async with self.client.post(path, json=question) as response:
            assert response.status == 200, await response.text()
            assert response.headers["Content-Type"] == "application/x-ndjson"
            return [json.loads(line) for line in (await response.read()).splitlines()]


@contextlib.asynccontextmanager
async def running(state: StateDirectory, **settings: Any) -> AsyncIterator[Stack]:
    stack = Stack(state, Settings(state=state.root, **settings))
    await stack.frontend.start()
    try:
        await until(lambda: stack.scheduler.all(Hello), "the frontend announces itself")
        yield stack
    finally:
        await stack.close()


def answering(stack: Stack, *texts: str, context: list[int] | None = None) -> None:
    """Has every request answered with these pieces."""
    stack.scheduler.on_generate = lambda header: (
        stack.scheduler.worker(header).started().says(*texts).finished(context=context)
    )


def starting(stack: Stack, *texts: str) -> None:
    """Has every request begun with these pieces, and not ended."""
    stack.scheduler.on_generate = lambda header: (
        stack.scheduler.worker(header).started().says(*texts) and None
    )


def read_to_the_end(client: socket.socket) -> int:
    """Bytes that a connection still holds, until it is closed or cut."""
    size = 0
    with contextlib.suppress(ConnectionResetError):
        while data := client.recv(1 << 16):
            size += len(data)
    return size
