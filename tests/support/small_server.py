"""An HTTP server on loopback that answers as a test says, and remembers what it was asked."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from aiohttp import web

from pronk.protocol.names import parse_name
from pronk.protocol.registries import RegistryAccess
from pronk.protocol.settings import Settings
from pronk.workers.store.registry.client import Registry, Repository
from pronk.workers.store.registry.credentials import Credentials
from pronk.workers.store.registry.transport import Patience

from .registry import Authority

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

QUICK = Patience(attempts=3, pause=0.01, longest_pause=0.5)
"""For tests of what comes at once."""
SHORT = replace(QUICK, silence=0.3, answer=0.5)
"""For tests of what does not come."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    method: str
    path: str
    """With its query."""
    headers: Mapping[str, str]


@dataclass(slots=True)
class SmallServer:
    """A server that runs."""

    host: str
    """`127.0.0.1:PORT`."""
    url: str
    asked: list[Asked] = field(default_factory=list)

    @property
    def authorizations(self) -> list[str | None]:
        """The `Authorization` of each request."""
        return [request.headers.get("Authorization") for request in self.asked]


@contextlib.asynccontextmanager
async def small_server(
    answer: Answer, tls: ssl.SSLContext | None = None
) -> AsyncIterator[SmallServer]:
    """Answers each request with `answer`, over TLS where a context is given."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        server.asked.append(Asked(request.method, request.raw_path, request.headers.copy()))
        return await answer(request)  # type: ignore[arg-type]

    runner = web.ServerRunner(web.Server(handle, handler_cancellation=True), shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    scheme = "https" if tls else "http"
    server = SmallServer(f"127.0.0.1:{port}", f"{scheme}://127.0.0.1:{port}")
    try:
        yield server
    finally:
        await runner.cleanup()


def tls_context(authority: Authority, directory: Path) -> ssl.SSLContext:
    """What a server needs whose certificate `authority` signs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.certificate(directory))
    return context


@contextlib.asynccontextmanager
async def repository(
    host: str,
    *,
    insecure: bool = True,
    path: str = "library/tiny:latest",
    access: Mapping[str, RegistryAccess] | None = None,
    keyring: Callable[[str], str | None] = lambda host: None,
    patience: Patience = QUICK,
) -> AsyncIterator[Repository]:
    """A model's repository at a host, by a client of its own."""
    credentials = Credentials(access or {}, keyring)
    registry = Registry(Settings(), patience, credentials)
    try:
        yield registry.repository(parse_name(f"{host}/{path}"), insecure=insecure)
    finally:
        await registry.close()
