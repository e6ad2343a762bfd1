"""The frontend's process: its socket, its application, its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import stat
from collections.abc import Callable

from aiohttp import web

from ..protocol.errors import Code, PronkError
from ..protocol.messages.failure import Failure
from ..protocol.settings import Settings
from ..protocol.state import StateDirectory
from .answers import errors_as_json
from .bodies import BodyReader
from .dialects.ollama.routes import OllamaDialect
from .draining import Draining
from .expectations import close_unasked, leave_waiting
from .library import Library
from .malformed import SERVER, Runner, quieten
from .operations.embedding import Embeddings
from .operations.generation import Generations
from .operations.library import Changes
from .operations.models import Models
from .operations.status import Status
from .origins import Origins
from .relay import Relay
from .uploads import Uploads

_log = logging.getLogger(__name__)

BACKLOG = 2048

UNSENT_BYTES = 64 * 1024
"""What the kernel may hold for a client that does not read. By itself it takes megabytes, and a
slow client would be noticed minutes late."""

HANDLER_SECONDS = 0.7
"""How long a handler may take to end its answer at shutdown; aiohttp grants it twice."""

SHORTEST_LIFE = 1.5
"""Seconds that a drained process lives at least: supervisord takes an earlier end for a start that
failed, and gives up after a few."""

FAREWELL_SECONDS = 0.05
"""For the last messages to leave: closing a socket drops what its thread has not sent."""


class Frontend:
    """One frontend on one listening socket. `start` it, and `stop` it, perhaps after a `drain`.

    `on_refused` hears why the scheduler does not accept this process, `on_drained` that nothing is
    under way any more.
    """

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        on_refused: Callable[[Failure], None] = lambda failure: None,
        on_drained: Callable[[], None] = lambda: None,
        name: str = "",
    ) -> None:
        self._settings = settings
        self._on_drained = on_drained
        self._draining = Draining()
        self._accepting = asyncio.Event()
        """Set once connections are accepted: the scheduler knows this process a moment earlier."""
        state = StateDirectory(settings.state)
        state.prepare()
        self._listener = listener
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # every accepted connection has it from here
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self._library = Library(state.store)
        self._uploads = Uploads(state.uploads)
        self._relay = Relay(settings, on_refused, self.drain, name)
        models = Models(settings, self._library)
        dialect = OllamaDialect(
            settings,
            BodyReader(settings.max_queue_bytes),
            models,
            Generations(models, self._relay, settings.request_timeout),
            Embeddings(models, self._relay, settings.request_timeout),
            Status(self._relay),
            Changes(self._library, self._uploads, self._relay),
        )
        origins = Origins(settings.origins, str(listener.getsockname()[0]))
        app = web.Application(
            middlewares=[self._draining.middleware, errors_as_json, origins.middleware],
            client_max_size=settings.max_generation_body,
        )
        app.add_routes(
            web.RouteDef(
                route.method,
                route.path,
                route.handler,
                {**route.kwargs, "expect_handler": leave_waiting},
            )
            for route in dialect.routes()
        )
        app.on_response_prepare.append(_name_server)
        app.on_response_prepare.append(origins.mark)
        app.on_response_prepare.append(self._draining.mark)
        app.on_response_prepare.append(close_unasked)
        app.on_shutdown.append(self._end_all)
        self._runner = Runner(
            app,
            handler_cancellation=True,
            shutdown_timeout=HANDLER_SECONDS,
            access_log_format='%a "%r" %s %bB %Tfs',
        )

    async def start(self) -> None:
        """Begins to accept connections."""
        await self._runner.setup()
        self._site = web.SockSite(self._runner, self._listener, backlog=BACKLOG)
        await self._site.start()
        self._accepting.set()
        host, port, *_ = self._listener.getsockname()
        _log.info("listening on %s, port %d", host, port)

    def drain(self, timeout: float | None = None) -> None:
        """Accepts no more, and has `on_drained` called when nothing is under way any more, at the
        latest after `timeout` seconds, which the settings say where it is None.
        """
        seconds = self._settings.drain_timeout if timeout is None else max(timeout, 0.0)
        self._draining.begin(seconds, self._finish)

    async def _finish(self) -> None:
        await self._accepting.wait()
        _log.info("draining: no connection is accepted any more")
        self._relay.announce_draining()
        await self._site.stop()
        server = self._runner.server
        assert server
        await self._draining.done(lambda: len(server.connections))
        self._on_drained()

    async def stop(self) -> None:
        """Accepts no more, ends what is in flight with a word to each client, and closes."""
        await self._runner.cleanup()
        await asyncio.sleep(FAREWELL_SECONDS)
        self._relay.close()
        self._library.close()
        self._uploads.close()

    async def _end_all(self, app: web.Application) -> None:
        farewell = PronkError(
            Code.UNAVAILABLE,
            "the server is shutting down; try again in a moment",
            retry_after=5.0,
        )
        for what_is_under_way in (self._relay, self._library, self._uploads):
            what_is_under_way.end_all(farewell)


async def run(settings: Settings, name: str = "") -> None:
    """Runs a frontend until SIGTERM or SIGINT, or until SIGUSR1 or the scheduler has had it drain.

    Raises `PronkError` when it cannot listen, its state directory cannot be used, or the scheduler
    does not accept it.
    """
    quieten()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    ends_at = loop.time() + SHORTEST_LIFE
    refusals: list[Failure] = []

    def refused(failure: Failure) -> None:
        refusals.append(failure)
        stop.set()

    def drained() -> None:
        loop.call_at(ends_at, stop.set)

    frontend = Frontend(settings, listening_socket(settings), refused, drained, name)
    loop.add_signal_handler(signal.SIGUSR1, frontend.drain)  # from here on its pid is known
    try:
        await frontend.start()
        await stop.wait()
    finally:
        await frontend.stop()
    if refusals:
        raise PronkError(Code.INTERNAL, f"the scheduler refuses it: {refusals[0].message}")


def listening_socket(settings: Settings) -> socket.socket:
    """The socket to accept from: descriptor 0 where a supervisor handed one over, else a new one.

    All frontends of a server share the inherited one. Without it, several share the port, and one
    alone has it for itself. Raises `PronkError` when the address cannot be had.
    """
    if inherited := _inherited_socket():
        return inherited
    address, port = settings.address
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if settings.frontends > 1:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(place)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise PronkError(
            Code.UNAVAILABLE,
            f"PRONK_HOST={settings.host}: {error.strerror or error}; stop what listens there, or "
            "name another address",
        ) from None
    return listener


def _inherited_socket() -> socket.socket | None:
    try:
        if not stat.S_ISSOCK(os.fstat(0).st_mode):
            return None
        inherited = socket.socket(fileno=os.dup(0))
    except OSError:
        return None
    if inherited.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return inherited
    inherited.close()
    return None


async def _name_server(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = SERVER
