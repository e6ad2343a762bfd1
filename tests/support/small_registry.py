"""A registry that can be read, as small as can be: blobs are files, parts of them can be had."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
MEDIA = "application/vnd.ollama.image."


class SmallRegistry:
    """What it has, and where it listens."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.host = ""
        """`127.0.0.1:PORT`, with which names in it begin."""

    def blob(self, content: bytes) -> dict[str, Any]:
        """Adds a blob; returns how a manifest names it, without a media type."""
        digest = hashlib.sha256(content).hexdigest()
        self.path(digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    def path(self, digest: str) -> Path:
        """The file of a blob."""
        return self.root / f"sha256:{digest}"

    def add(self, name: str, weights: bytes, *others: dict[str, Any], **config: str) -> bytes:
        """Adds a model `namespace/model:tag`; returns its manifest."""
        repository, _, tag = name.partition(":")
        described = {"model_format": "gguf", "model_family": "llama", **config}
        content = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, **self.blob(json.dumps(described).encode())},
            "layers": [{"mediaType": f"{MEDIA}model", **self.blob(weights)}, *others],
        }
        return self.put(repository, tag, json.dumps(content).encode())

    def put(self, repository: str, tag: str, manifest: bytes) -> bytes:
        """Adds a manifest, whatever it holds."""
        path = self.root / repository / tag
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(manifest)
        return manifest

    async def _manifest(self, request: web.Request) -> web.Response:
        path = self.root / request.match_info["name"] / request.match_info["tag"]
        if not path.is_file():
            raise web.HTTPNotFound
        return web.Response(body=path.read_bytes(), content_type=MANIFEST)

    async def _blob(self, request: web.Request) -> web.StreamResponse:
        path = self.root / request.match_info["digest"]
        if not path.is_file():
            raise web.HTTPNotFound
        return web.FileResponse(path, headers={"Content-Type": "application/octet-stream"})

    def app(self) -> web.Application:
        """What answers."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/v2/", _empty),
                web.get("/v2/{name:.+}/manifests/{tag}", self._manifest),
                web.get("/v2/{name:.+}/blobs/{digest}", self._blob),
            ]
        )
        return app


async def _empty(request: web.Request) -> web.Response:
    return web.json_response({})


@asynccontextmanager
async def small_registry(root: Path) -> AsyncIterator[SmallRegistry]:
    """A registry that listens on loopback."""
    registry = SmallRegistry(root)
    runner = web.AppRunner(registry.app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address, port = runner.addresses[0][:2]
    registry.host = f"{address}:{port}"
    try:
        yield registry
    finally:
        await runner.cleanup()
