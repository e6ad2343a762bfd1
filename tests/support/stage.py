"""A scheduler with real sockets, beside peers that the test plays.

A worker here is a process that only sleeps: the scheduler watches and kills it like any other,
while the test speaks for it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from pronk.protocol.channels import Dealer, Router
from pronk.protocol.codec import VERSION
from pronk.protocol.errors import Code
from pronk.protocol.keys import ClientKeys
from pronk.protocol.messages.devices import Discovered
from pronk.protocol.messages.embedding import Embed
from pronk.protocol.messages.failure import Failure
from pronk.protocol.messages.fleet import (
    Hello,
    LoadedModel,
    PeerHeartbeat,
    ProcessIdentity,
    Role,
    SchedulerHeartbeat,
    WorkerPhase,
)
from pronk.protocol.messages.generation import (
    Caller,
    Generate,
)
from pronk.protocol.messages.library import (
    CallFailed,
    DescribeModel,
    ModelDescribed,
    ModelDetails,
    ModelFacts,
    ModelResolved,
    ResolveModel,
)
from pronk.protocol.messages.placement import (
    Load,
    Loaded,
    Outcome,
    Released,
    SetThreads,
)
from pronk.protocol.process import new_incarnation, own_identity
from pronk.protocol.settings import Settings, load_settings
from pronk.protocol.state import StateDirectory
from pronk.scheduler.devices import Devices
from pronk.scheduler.service import Scheduler

PATIENCE = 60
"""Seconds after which a test that waits in vain gives up: far above what a slow machine needs."""

A, B, UNKNOWN = "a" * 64, "b" * 64, "e" * 64
DETAILS = ModelDetails("", "gguf", "llama", ["llama"], "1M", "Q8_0")


class Peer:
    """A process of the test's own: a frontend or a worker, as the scheduler sees it."""

    def __init__(
        self,
        state: StateDirectory,
        role: Role,
        process: subprocess.Popen[bytes],
        join: tuple[str, ClientKeys] | None = None,
        identity: str | None = None,
    ) -> None:
        self.id = identity or new_incarnation()
        self.role = role
        self.process = process
        self.endpoint = state.frontend(self.id)
        self.received: list[Any] = []
        """All but heartbeats and thread counts."""
        self.threads: int | None = None
        """The last thread count that it was told."""
        self._news = asyncio.Event()
        endpoint, keys = join or (state.scheduler, None)
        self.dealer = Dealer(endpoint, self.id, self._on_message, keys=keys)

    def _on_message(self, message: Any, body: bytes) -> None:
        if isinstance(message, SetThreads):
            self.threads = message.threads
        elif not isinstance(message, SchedulerHeartbeat):
            self.received.append((message, body) if body else message)
        self._news.set()

    def hello(self, **fields: Any) -> None:
        here = own_identity()
        start = psutil.Process(self.process.pid).create_time() - psutil.boot_time()
        ticks = _start_ticks(self.process.pid) if start >= 0 else 0
        identity = ProcessIdentity(self.process.pid, ticks, here.pid_namespace, here.host_boot_id)
        if self.role is Role.FRONTEND:
            fields.setdefault("endpoint", self.endpoint)
        else:
            fields.setdefault("phase", WorkerPhase.BLANK)
        self.dealer.send(Hello(VERSION, self.role, self.id, identity, **fields))

    def send(self, message: Any, body: bytes = b"") -> None:
        self.dealer.send(message, body)

    async def expect(self, kind: type[Any]) -> Any:
        """The next message, which has to be of this kind."""
        async with asyncio.timeout(PATIENCE):
            while not self.received:
                self._news.clear()
                await self._news.wait()
        message = self.received.pop(0)
        bare = message[0] if isinstance(message, tuple) else message
        assert isinstance(bare, kind), bare
        return message

    async def load(self, slots: int = 1) -> Load:
        """Plays a worker that loads what it is told."""
        load: Load = await self.expect(Load)
        model = LoadedModel(load.model.name, load.model.digest, load.context_length, slots, 1000, 0)
        self.send(Loaded(model, 10**6))
        return load

    def generate(self, digest: str = A, **fields: Any) -> Generate:
        header = Generate(
            uuid4().hex,
            fields.pop("attempt", 1),
            "model",
            digest,
            Caller(fields.pop("caller", "anonymous")),
            self.id,
            self.endpoint,
            seed=1,
            cost=fields.pop("cost", 1),
            **fields,
        )
        self.send(header, b"body")
        return header

    def embed(self, digest: str = A, **fields: Any) -> Embed:
        common = (uuid4().hex, 1, "model", digest, Caller(), self.id, self.endpoint)
        header = Embed(*common, cost=1, **fields)
        self.send(header, b"numbers")
        return header

    def release(self, header: Generate | Embed) -> None:
        self.send(Released(header.request, header.attempt, Outcome.FINISHED, 3))

    def beat(self) -> asyncio.Task[None]:
        """Plays a peer that lives, and whose engine, if it has one, stands still."""

        async def beat_for_ever() -> None:
            while True:
                self.send(PeerHeartbeat(steps=1, in_flight=1))
                await asyncio.sleep(0.1)

        return asyncio.create_task(beat_for_ever())


def _start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def processors_alone(settings: Settings) -> Devices:
    """The devices of a host of which it is known that it has no GPU."""
    devices = Devices(settings)
    devices.on_discovered(Discovered("0" * 32, [], 2))
    return devices


class Stage:
    """A scheduler, a store that knows the models A and B, and whoever the test adds.

    `discovered` says whether the scheduler knows its devices from the beginning; else the first
    blank worker is asked.
    """

    def __init__(self, directory: str, *, discovered: bool = True, **settings: Any) -> None:
        self.settings = load_settings(state=directory, **settings)
        self.state = StateDirectory(self.settings.state)
        devices = processors_alone(self.settings) if discovered else None
        self.scheduler = Scheduler(self.settings, devices)
        self.scheduler.start()
        self.store = Router(self.state.store, self._asked)
        self.peers: list[Peer] = []
        self.parameters: dict[str, dict[str, Any]] = {}
        """What the Modelfiles of models set, by digest."""
        self.sizes: dict[str, int] = {}
        """Bytes of models, by digest; few where nothing is said."""

    def _asked(self, peer: str, question: DescribeModel | ResolveModel, body: bytes) -> None:
        answer: Any
        if isinstance(question, ResolveModel):
            digest = 64 * question.name[0]
            answer = ModelResolved(question.call, question.name, digest, ["completion"])
        elif question.digest == UNKNOWN:
            failure = Failure(Code.LOAD_FAILED, "this file is no model")
            answer = CallFailed(question.call, failure)
        else:
            name = question.digest[0]
            facts = ModelFacts(
                f"{name}:latest",
                question.digest,
                f"/{name}",
                self.sizes.get(question.digest, 10),
                2048,
                DETAILS,
                self.parameters.get(question.digest, {}),
            )
            answer = ModelDescribed(question.call, facts)
        self.store.send(peer, answer)

    def add(
        self,
        role: Role,
        *,
        greet: bool = True,
        join: tuple[str, ClientKeys] | None = None,
        **hello: Any,
    ) -> Peer:
        """A peer of this host, or of another one that joins over tcp."""
        command = [sys.executable, "-c", "import time; time.sleep(300)"]
        peer = Peer(self.state, role, subprocess.Popen(command), join)
        self.peers.append(peer)
        if greet:
            peer.hello(**hello)
        return peer

    def change(self, **settings: Any) -> None:
        """Lets the scheduler look at these settings from now on."""
        self.settings = self.settings.model_copy(update=settings)
        self.scheduler._settings = self.settings

    def frontend(self, **hello: Any) -> Peer:
        return self.add(Role.FRONTEND, **hello)

    def worker(self, **hello: Any) -> Peer:
        return self.add(Role.WORKER, **hello)

    def close(self) -> None:
        for peer in self.peers:
            peer.dealer.close()
            peer.process.kill()
            peer.process.wait()
        self.store.close()
        self.scheduler.close()


StageMaker = Callable[..., Stage]
