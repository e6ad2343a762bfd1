"""Models that are written into a library as pulls and creates write them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pronk.protocol.names import parse_name
from pronk.workers.store.writing import Writer

from .store import MEDIA


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def layer(kind: str, content: bytes) -> dict[str, Any]:
    return {
        "mediaType": MEDIA + kind,
        "digest": f"sha256:{digest_of(content)}",
        "size": len(content),
    }


def manifest(weights: bytes, *layers: dict[str, Any], config: bytes = b"{}") -> bytes:
    described = layer("", config) | {"mediaType": "application/vnd.docker.container.image.v1+json"}
    parts = [layer("model", weights), *layers]
    return json.dumps({"schemaVersion": 2, "config": described, "layers": parts}).encode()


def adopted(writer: Writer, content: bytes) -> Path:
    """A blob that came as a download does."""
    path = writer.partial(digest_of(content))
    path.write_bytes(content)
    return writer.adopt(path, digest_of(content))


def written(writer: Writer, name: str, weights: bytes, *kept: bytes) -> str:
    """A model of these weights, and of licenses; returns its digest."""
    adopted(writer, weights)
    writer.keep(b"{}")
    for content in kept:
        writer.keep(content)
    layers = (layer("license", content) for content in kept)
    return writer.commit(parse_name(name), manifest(weights, *layers))
