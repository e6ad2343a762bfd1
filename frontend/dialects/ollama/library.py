"""The paths of Ollama's API that change the model library, and what each one does."""

from __future__ import annotations

from typing import TypeVar

import orjson
from aiohttp import web
from aiohttp.web_exceptions import HTTPUnsupportedMediaType
from pydantic import BaseModel

from ....protocol.errors import Code, PronkError
from ....protocol.messages.changes import Progress
from ...answers import json_response
from ...bodies import BodyReader, chunks_of, parse_object
from ...operations.library import Change, Changes
from .connection import caller_of, stream
from .orders import CopyRequest, CreateRequest, DeleteRequest, TransferRequest, read_digest
from .requests import parse

MAX_CREATE_BODY = 4 * 1024 * 1024
"""Bytes of a request that makes a model: more than a control request may have, because it holds the
model's texts, and no more than fits with them into one message to the store."""

_Request = TypeVar("_Request", bound=BaseModel)


class LibraryPaths:
    """Translates requests for changes to operations and back. `max_body` is in bytes."""

    def __init__(self, changes: Changes, bodies: BodyReader, max_body: int) -> None:
        self._changes = changes
        self._bodies = bodies
        self._max_body = max_body

    def routes(self) -> list[web.RouteDef]:
        """The table."""
        return [
            web.post("/api/pull", self.pull),
            web.post("/api/push", self.push),
            web.post("/api/create", self.create),
            web.post("/api/copy", self.copy),
            web.delete("/api/delete", self.delete),
            web.head("/api/blobs/{digest}", self.find_blob),
            web.post("/api/blobs/{digest}", self.upload_blob),
        ]

    async def pull(self, request: web.Request) -> web.StreamResponse:
        """Fetches a model from its registry."""
        asked = await self._read(request, TransferRequest)
        change = self._changes.pull(caller_of(request), asked.model, insecure=bool(asked.insecure))
        return await _follow(request, change, streams=asked.streams)

    async def push(self, request: web.Request) -> web.StreamResponse:
        """Brings a model to its registry."""
        asked = await self._read(request, TransferRequest)
        change = self._changes.push(caller_of(request), asked.model, insecure=bool(asked.insecure))
        return await _follow(request, change, streams=asked.streams)

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Makes a model of another one, or of files that were uploaded."""
        body = await self._bodies.read(
            request, MAX_CREATE_BODY, "for all texts of a model together"
        )
        asked = parse(CreateRequest, parse_object(body))
        change = self._changes.create(caller_of(request), asked.model, asked.recipe())
        return await _follow(request, change, streams=asked.streams)

    async def copy(self, request: web.Request) -> web.StreamResponse:
        """Gives a model another name, too."""
        asked = await self._read(request, CopyRequest)
        await self._changes.copy(caller_of(request), asked.source, asked.destination)
        return web.Response()

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """Removes a name, and what nothing else needs."""
        asked = await self._read(request, DeleteRequest)
        await self._changes.delete(caller_of(request), asked.model)
        return web.Response()

    async def find_blob(self, request: web.Request) -> web.StreamResponse:
        """Whether a file is there: 200 or 404."""
        found = await self._changes.find_blob(caller_of(request), _digest_of(request))
        return web.Response(status=404 if found is None else 200)

    async def upload_blob(self, request: web.Request) -> web.StreamResponse:
        """Takes a file: 201, or 200 where it was there and is not read again."""
        digest, caller = _digest_of(request), caller_of(request)
        if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            raise HTTPUnsupportedMediaType(
                text="the file's digest is that of its own bytes; send it without Content-Encoding"
            )
        size, chunks = request.content_length, chunks_of(request)
        taken = await self._changes.upload(caller, digest, size, chunks)
        return web.Response(status=201 if taken else 200)

    async def _read(self, request: web.Request, kind: type[_Request]) -> _Request:
        body = await self._bodies.read(request, self._max_body, "PRONK_MAX_CONTROL_BODY")
        return parse(kind, parse_object(body))


def _digest_of(request: web.Request) -> str:
    try:
        return read_digest(request.match_info["digest"])
    except ValueError as error:
        raise PronkError(Code.INVALID_REQUEST, f"invalid digest format: it {error}") from None


async def _follow(request: web.Request, change: Change, *, streams: bool) -> web.StreamResponse:
    with change:
        if streams:
            return await stream(request, lambda: _ready(change))
        while not (await change.take()).changed:
            pass
    return json_response({"status": "success"})


async def _ready(change: Change) -> tuple[bytes, bool]:
    """The lines that are ready, and whether they are the last."""
    steps = await change.take()
    return b"".join(map(line, steps.progress)), steps.changed is not None


def line(progress: Progress) -> bytes:
    """One line of progress. What there is nothing to say of is left out, as in Ollama."""
    fields = {
        "status": progress.status,
        "digest": progress.digest,
        "total": progress.total,
        "completed": progress.completed,
    }
    written = {name: value for name, value in fields.items() if value or name == "status"}
    return orjson.dumps(written) + b"\n"
