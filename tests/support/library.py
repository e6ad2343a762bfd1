"""Models put into a library in Ollama's layout, as `ollama create` would leave them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any


def add_model(
    library: Path,
    name: str,
    weights: Path,
    parameters: dict[str, Any] | None = None,
    **parts: str | Path,
) -> str:
    """Adds `weights` (hard-linked where it can be) as `name`; returns the model's digest.

    `parts` are further layers by kind, such as `system` or `adapter`: a text or a file. The same
    weights with other Modelfile `parameters`, or other parts, are another model.
    """
    model, _, tag = name.partition(":")
    digest = _digest(weights)
    _blob(library, digest).parent.mkdir(parents=True, exist_ok=True)
    if not _blob(library, digest).exists():
        try:
            os.link(weights, _blob(library, digest))
        except OSError:
            shutil.copyfile(weights, _blob(library, digest))
    config = json.dumps({"model_format": "gguf", "model_family": "llama", "model_type": "1M"})
    config_digest = hashlib.sha256(config.encode()).hexdigest()
    _blob(library, config_digest).write_text(config)
    layers = [_layer("model", digest, weights.stat().st_size)]
    if parameters:
        parts["params"] = json.dumps(parameters)
    for kind, part in parts.items():
        content = part.read_bytes() if isinstance(part, Path) else part.encode()
        part_digest = hashlib.sha256(content).hexdigest()
        _blob(library, part_digest).write_bytes(content)
        layers.append(_layer(kind, part_digest, len(content)))
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "digest": f"sha256:{config_digest}",
                "size": len(config),
            },
            "layers": layers,
        }
    )
    path = library / "manifests" / "registry.ollama.ai" / "library" / model / (tag or "latest")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(manifest)
    return hashlib.sha256(manifest.encode()).hexdigest()


def _layer(kind: str, digest: str, size: int) -> dict[str, Any]:
    media_type = f"application/vnd.ollama.image.{kind}"
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}


def _blob(library: Path, digest: str) -> Path:
    return library / "blobs" / f"sha256-{digest}"


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
