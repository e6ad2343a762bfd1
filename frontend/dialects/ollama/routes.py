"""The paths of Ollama's API, and what each one does."""

from __future__ import annotations

from typing import TypeVar

from aiohttp import web

from ....protocol.messages.generation import Caller, Kind, PositionLogprobs, ToolCall
from ....protocol.settings import Settings
from ...answers import json_response
from ...bodies import BodyReader, parse_object
from ...operations.embedding import Embeddings
from ...operations.generation import Generation, Generations
from ...operations.library import Changes
from ...operations.models import Models
from ...operations.status import Status
from ...stream import Thinking
from . import listings, vectors
from .connection import abort, caller_of, stream
from .library import LibraryPaths
from .lines import Lines
from .requests import ChatRequest, GenerateRequest, ModelRequest, ShowRequest, parse
from .vectors import EmbeddingsRequest, EmbedRequest, RerankRequest

API_VERSION = "0.13.5"
"""The version of Ollama whose API this is: clients refuse versions that are too old for them."""

GREETING = "Ollama is running"
"""What scripts compare the root page with to find out whether the server is up."""

JSON = "application/json; charset=utf-8"
_Request = TypeVar("_Request", bound=ModelRequest)


class OllamaDialect:
    """Translates Ollama's API to operations and back."""

    def __init__(
        self,
        settings: Settings,
        bodies: BodyReader,
        models: Models,
        generations: Generations,
        embeddings: Embeddings,
        status: Status,
        changes: Changes,
    ) -> None:
        self._settings = settings
        self._bodies = bodies
        self._models = models
        self._generations = generations
        self._embeddings = embeddings
        self._status = status
        self._library = LibraryPaths(changes, bodies, settings.max_control_body)

    def routes(self) -> list[web.RouteDef]:
        """The table. Every GET answers HEAD, too."""
        return [
            web.get("/", self.root),
            web.get("/api/version", self.version),
            web.get("/api/tags", self.tags),
            web.get("/api/ps", self.ps),
            web.post("/api/show", self.show),
            web.post("/api/chat", self.chat),
            web.post("/api/generate", self.generate),
            web.post("/api/embed", self.embed),
            web.post("/api/embeddings", self.embeddings),
            web.post("/api/rerank", self.rerank),
            *self._library.routes(),
        ]

    async def root(self, request: web.Request) -> web.StreamResponse:
        """Says that the server is up."""
        return web.Response(text=GREETING)

    async def version(self, request: web.Request) -> web.StreamResponse:
        """The API's version, not Pronk's."""
        return json_response({"version": API_VERSION})

    async def tags(self, request: web.Request) -> web.StreamResponse:
        """The models of the library."""
        return json_response(listings.tags(await self._models.list(caller_of(request))))

    async def ps(self, request: web.Request) -> web.StreamResponse:
        """The loaded models."""
        return json_response(listings.ps(await self._status.running(caller_of(request))))

    async def show(self, request: web.Request) -> web.StreamResponse:
        """Everything about one model."""
        fields = await self._read_control(request, ShowRequest)
        shown = await self._models.show(
            caller_of(request), fields.model, verbose=bool(fields.verbose)
        )
        return json_response(listings.show(shown))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """The next message of a conversation."""
        return await self._answer(request, await self._read_generation(request, ChatRequest))

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """The answer to, or the continuation of, one prompt."""
        return await self._answer(request, await self._read_generation(request, GenerateRequest))

    async def embed(self, request: web.Request) -> web.StreamResponse:
        """A vector of length 1 for each text."""
        asked = await self._read_generation(request, EmbedRequest)
        embedding = await self._embeddings.embed(caller_of(request), asked.embedding())
        return _object(vectors.embed(asked.model, embedding))

    async def embeddings(self, request: web.Request) -> web.StreamResponse:
        """The vector of one text as the model computes it: the older form of `embed`."""
        asked = await self._read_generation(request, EmbeddingsRequest)
        embedding = await self._embeddings.embed(caller_of(request), asked.embedding())
        return _object(vectors.embeddings(embedding))

    async def rerank(self, request: web.Request) -> web.StreamResponse:
        """Documents in the order of their relevance for a query."""
        asked = await self._read_generation(request, RerankRequest)
        embedding = await self._embeddings.embed(caller_of(request), asked.embedding())
        return _object(vectors.ranking(asked, embedding))

    async def _read_control(self, request: web.Request, kind: type[_Request]) -> _Request:
        limit = self._settings.max_control_body
        body = await self._bodies.read(request, limit, "PRONK_MAX_CONTROL_BODY")
        return parse(kind, parse_object(body))

    async def _read_generation(self, request: web.Request, kind: type[_Request]) -> _Request:
        limit = self._settings.max_generation_body
        body = await self._bodies.read(request, limit, "PRONK_MAX_GENERATION_BODY")
        return parse(kind, parse_object(body))

    async def _answer(
        self, request: web.Request, asked: ChatRequest | GenerateRequest
    ) -> web.StreamResponse:
        caller = caller_of(request)
        kind = Kind.CHAT if isinstance(asked, ChatRequest) else Kind.COMPLETION
        lines = Lines(kind, asked.model)
        if asked.is_empty:
            reason = await self._set_stay(caller, asked)
            return _object(lines.notice(reason))
        wanted = asked.generation()
        with await self._generations.start(caller, wanted, lambda: abort(request)) as generation:
            if asked.streams:
                return await stream(request, lambda: _ready(generation, lines))
            return await _collect(generation, lines)

    async def _set_stay(self, caller: Caller, asked: ChatRequest | GenerateRequest) -> str:
        """Loads or unloads a model without a prompt; returns Ollama's word for what was done."""
        if asked.unloads:
            await self._generations.evict(caller, asked.model)
            return "unload"
        await self._generations.preload(
            caller,
            asked.model,
            keep_alive=asked.keep_alive,
            context_length=asked.num_ctx,
            offload=asked.offload,
        )
        return "load"


def _object(body: bytes) -> web.Response:
    return web.Response(body=body, headers={"Content-Type": JSON})


async def _ready(generation: Generation, lines: Lines) -> tuple[bytes, bool]:
    """The lines that are ready, and whether they are the last."""
    output = await generation.take()
    return lines.lines(output), output.completion is not None


async def _collect(generation: Generation, lines: Lines) -> web.StreamResponse:
    """The whole answer in one object."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    logprobs: list[PositionLogprobs] = []
    while True:
        output = await generation.take()
        for piece in output.pieces:
            match piece:
                case str():
                    texts.append(piece)
                case Thinking(text):
                    thoughts.append(text)
                case _:
                    calls += piece
        for of_piece in output.logprobs or ():
            logprobs += of_piece
        if output.completion:
            return _object(
                lines.whole(
                    "".join(texts),
                    output.completion,
                    logprobs,
                    thinking="".join(thoughts),
                    calls=calls,
                )
            )
