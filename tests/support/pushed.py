"""Models put into a real registry by hand, over its own protocol."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import httpx

from .small_registry import CONFIG, MANIFEST, MEDIA

_CHUNK = 1024 * 1024


def push_model(url: str, name: str, weights: Path) -> str:
    """Puts a model `namespace/model:tag` of these weights, and a config, into the registry at
    `url`; returns the digest of the weights.
    """
    repository, _, tag = name.partition(":")
    described = json.dumps({"model_format": "gguf", "model_family": "llama"}).encode()
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with httpx.Client(base_url=url, timeout=120) as client:
        config = hashlib.sha256(described).hexdigest()
        _blob(client, repository, config, len(described), [described])
        _blob(client, repository, digest, weights.stat().st_size, _chunks(weights))
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _layer(CONFIG, config, len(described)),
            "layers": [_layer(f"{MEDIA}model", digest, weights.stat().st_size)],
        }
        client.put(
            f"/v2/{repository}/manifests/{tag}",
            content=json.dumps(manifest).encode(),
            headers={"Content-Type": MANIFEST},
        ).raise_for_status()
    return digest


def _blob(
    client: httpx.Client, repository: str, digest: str, size: int, content: Iterable[bytes]
) -> None:
    place = client.post(f"/v2/{repository}/blobs/uploads/").raise_for_status().headers["Location"]
    client.put(
        httpx.URL(place).copy_merge_params({"digest": f"sha256:{digest}"}),
        content=iter(content),
        headers={"Content-Length": str(size), "Content-Type": "application/octet-stream"},
    ).raise_for_status()


def _layer(media_type: str, digest: str, size: int) -> dict[str, object]:
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}


def _chunks(path: Path) -> Iterable[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
