"""A model's config and manifest as Ollama writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from ..layout import MEDIA_TYPE, Config, Layer

_CONFIG = "application/vnd.docker.container.image.v1+json"
_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob that a manifest names."""

    digest: str
    size: int


def config_bytes(config: Config, layers: Sequence[Layer]) -> bytes:
    """The config blob. What only some models have is left out where it is empty."""
    optional = {
        "renderer": config.renderer,
        "parser": config.parser,
        "requires": config.requires,
    }
    return _json(
        {
            "model_format": config.format,
            "model_family": config.family,
            "model_families": list(config.families),
            "model_type": config.parameter_size,
            "file_type": config.quantization,
            **{name: value for name, value in optional.items() if value},
            "architecture": "amd64",
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{one.digest}" for one in layers]},
        }
    )


def manifest_bytes(config: Blob, layers: Sequence[Layer]) -> bytes:
    """The manifest."""
    return _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _described(_CONFIG, config.digest, config.size),
            "layers": [_layer(layer) for layer in layers],
        }
    )


def _layer(layer: Layer) -> dict[str, Any]:
    # A kind with a slash is another media type in full.
    media_type = layer.kind if "/" in layer.kind else MEDIA_TYPE + layer.kind
    origin = {"from": layer.origin} if layer.origin else {}
    return _described(media_type, layer.digest, layer.size) | origin


def _described(media_type: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}


def _json(value: Any) -> bytes:
    return orjson.dumps(value)
