"""The HTTP API as commands see it, over real HTTP, with a library that is a dictionary.

For what a command does with answers that a real server gives seldom, late, or never.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from support.server import PATIENCE

Line = dict[str, Any] | str | threading.Event
"""An object of a stream; a text that is sent as it is; or something to wait for."""

GIGABYTES = 4_700_000_000
LAYER = "6a0746a1ec1a" + "0" * 52

PULLED: list[Line] = [
    {"status": "pulling manifest"},
    {"status": f"pulling {LAYER[:12]}", "digest": f"sha256:{LAYER}", "total": GIGABYTES},
    {
        "status": f"pulling {LAYER[:12]}",
        "digest": f"sha256:{LAYER}",
        "total": GIGABYTES,
        "completed": 1_100_000_000,
    },
    {
        "status": f"pulling {LAYER[:12]}",
        "digest": f"sha256:{LAYER}",
        "total": GIGABYTES,
        "completed": GIGABYTES,
    },
    {"status": "verifying sha256 digest"},
    {"status": "writing manifest"},
    {"status": "success"},
]


def listed(name: str, **fields: Any) -> dict[str, Any]:
    """A model in a list."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    return {
        "name": name,
        "model": name,
        "modified_at": "2024-01-02T03:04:05.123456789Z",
        "size": GIGABYTES,
        "digest": digest,
        "details": {"family": "llama"},
        **fields,
    }


class PlayedApi:
    """The API, and what was asked of it."""

    def __init__(self) -> None:
        self.url = ""
        self.models: dict[str, dict[str, Any]] = {}
        """What `/api/show` tells of each."""
        self.list: list[dict[str, Any]] = []
        self.loaded: list[dict[str, Any]] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        """Path and body, in their order."""
        self.keys: list[str] = []
        """What was sent to be let in."""
        self.blobs: dict[str, int] = {}
        """Digests, and how many bytes they have."""
        self.pull: list[Line] = list(PULLED)
        self.push: list[Line] = [{"status": "retrieving manifest"}, {"status": "success"}]
        self.create: list[Line] = [{"status": "writing manifest"}, {"status": "success"}]
        self.answer: list[Line] = []
        """What chat and generate stream."""
        self.vector = [0.25, -0.5]
        self.refuses_blobs = ""
        self.ends = False
        """Whether nobody waits for anything any more."""

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [body for asked, body in self.asked if asked == path]

    def application(self) -> web.Application:
        app = web.Application(client_max_size=2**30)
        app.add_routes(
            [
                web.get("/api/tags", self._tags),
                web.get("/api/ps", self._ps),
                web.post("/api/show", self._show),
                web.post("/api/copy", self._copy),
                web.delete("/api/delete", self._delete),
                web.post("/api/pull", self._pull),
                web.post("/api/push", self._push),
                web.post("/api/create", self._create),
                web.head("/api/blobs/{digest}", self._has_blob),
                web.post("/api/blobs/{digest}", self._take_blob),
                web.post("/api/generate", self._generate),
                web.post("/api/chat", self._chat),
                web.post("/api/embed", self._embed),
            ]
        )
        return app

    async def _body(self, request: web.Request) -> dict[str, Any]:
        body = await request.json()
        self.asked.append((request.path, body))
        if key := request.headers.get("authorization"):
            self.keys.append(key)
        return body

    async def _tags(self, _: web.Request) -> web.Response:
        return web.json_response({"models": self.list})

    async def _ps(self, _: web.Request) -> web.Response:
        return web.json_response({"models": self.loaded})

    async def _show(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        return self._known(body["model"]) or web.json_response(self.models[body["model"]])

    async def _copy(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        return self._known(body["source"]) or self._add(body["destination"])

    async def _delete(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        if refused := self._known(body["model"]):
            return refused
        del self.models[body["model"]]
        return web.Response()

    async def _pull(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        return await self._stream(request, self.pull, body["model"])

    async def _push(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        return self._known(body["model"]) or await self._stream(request, self.push)

    async def _create(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        named = [*body.get("files", {}).values(), *body.get("adapters", {}).values()]
        if missing := [digest for digest in named if digest not in self.blobs]:
            return web.json_response({"error": f"blob {missing[0]} not found"}, status=400)
        return await self._stream(request, self.create, body["model"])

    async def _has_blob(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if request.match_info["digest"] in self.blobs else 404)

    async def _take_blob(self, request: web.Request) -> web.Response:
        if self.refuses_blobs:
            return web.json_response({"error": self.refuses_blobs}, status=507)
        digest, size = hashlib.sha256(), 0
        async for chunk in request.content.iter_any():
            digest.update(chunk)
            size += len(chunk)
        named = request.match_info["digest"]
        assert size == request.content_length
        if f"sha256:{digest.hexdigest()}" != named:
            return web.json_response({"error": "digest mismatch"}, status=400)
        self.blobs[named] = size
        return web.Response(status=201)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if refused := self._known(body["model"]):
            return refused
        if not body.get("prompt"):
            return web.json_response({"model": body["model"], "response": "", "done": True})
        return await self._stream(request, self.answer)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        return self._known(body["model"]) or await self._stream(request, self.answer)

    async def _embed(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        return web.json_response({"model": body["model"], "embeddings": [self.vector]})

    def _known(self, name: str) -> web.Response | None:
        if name in self.models:
            return None
        return web.json_response({"error": f"model '{name}' not found"}, status=404)

    def _add(self, name: str) -> web.Response:
        self.models[name] = {}
        return web.Response()

    async def _stream(
        self, request: web.Request, lines: list[Line], adds: str = ""
    ) -> web.StreamResponse:
        """Lines as they are. A stream that does not end with success is cut off."""
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        for line in lines:
            if isinstance(line, threading.Event):
                while not (line.is_set() or self.ends):
                    await asyncio.sleep(0.01)
                continue
            text = line if isinstance(line, str) else json.dumps(line) + "\n"
            await response.write(text.encode())
        if adds:
            self.models.setdefault(adds, {})
        return response


def said(*pieces: str, **last: Any) -> list[Line]:
    """What chat and generate stream for an answer in these pieces."""
    fields = {"model": "m", "created_at": "2024-01-02T03:04:05Z"}
    lines: list[Line] = [
        fields
        | {"response": piece, "message": {"role": "assistant", "content": piece}, "done": False}
        for piece in pieces
    ]
    end = {"response": "", "message": {"role": "assistant", "content": ""}, "done": True}
    return [*lines, fields | end | {"done_reason": "stop"} | last]


@contextlib.contextmanager
def played_api() -> Iterator[PlayedApi]:
    """Serves on a free loopback port, in a thread of its own."""
    played, loop, ready = PlayedApi(), asyncio.new_event_loop(), threading.Event()
    runner = web.AppRunner(played.application(), shutdown_timeout=0)

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        played.url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    def serve() -> None:
        loop.run_until_complete(start())
        loop.call_soon(ready.set)  # not before the loop runs that is stopped in the end
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        yield played
    finally:
        played.ends = True
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        assert not thread.is_alive()
