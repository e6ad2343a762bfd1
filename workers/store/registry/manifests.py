"""A model's manifest: which blobs it is made of. All that a registry may send is checked here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

from ....protocol.errors import PronkError
from .failures import failed, json_object, printable

DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
ACCEPTED = f"{DOCKER_MANIFEST}, {OCI_MANIFEST}"

MAX_MANIFEST = 1024 * 1024
"""Bytes of a manifest: some 7,000 layers."""
MAX_SIZE = 2**50
"""Bytes of a blob, and of all of a model's together."""

_LISTS = (
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.index.v1+json",
)
_CONFIGS = (
    "application/vnd.docker.container.image.v1+json",
    "application/vnd.oci.image.config.v1+json",
)
_OLLAMA = "application/vnd.ollama.image."
_MAX_MEDIA_TYPE = 255
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One blob, as a manifest names it."""

    media_type: str
    digest: str
    """64 hexadecimal digits."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A model."""

    media_type: str
    config: Descriptor
    layers: tuple[Descriptor, ...]

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """Each blob once: the layers in their order, then the config."""
        return tuple({blob.digest: blob for blob in (*self.layers, self.config)}.values())


def parse_manifest(raw: bytes) -> Manifest:
    """What a manifest says. Raises `PronkError` (registry_failed) where it is none of a model."""
    if len(raw) > MAX_MANIFEST:
        raise _wrong(f"it is larger than {MAX_MANIFEST // 1024} KiB")
    value = json_object(raw)
    if value is None:
        raise _wrong("it is not a JSON object")
    media_type = value.get("mediaType", DOCKER_MANIFEST)
    if media_type in _LISTS or "manifests" in value:
        raise _wrong("it is a list of images for several platforms, not a model")
    if value.get("schemaVersion", 2) != 2 or media_type not in (DOCKER_MANIFEST, OCI_MANIFEST):
        raise _wrong(f"its form is not known{_quoted(media_type)}")
    config = _descriptor(value.get("config"), "its config")
    if config.media_type not in _CONFIGS and not config.media_type.startswith(_OLLAMA):
        raise _wrong(f"it is not a model for Ollama{_quoted(config.media_type)}")
    listed = value.get("layers")
    if not isinstance(listed, list) or not listed:
        raise _wrong("it has no layers")
    layers = [_descriptor(layer, "one of its layers") for layer in cast(list[Any], listed)]
    manifest = Manifest(media_type, config, tuple(layers))
    _check(manifest)
    return manifest


def _check(manifest: Manifest) -> None:
    for layer in manifest.layers:
        if not layer.media_type.startswith(_OLLAMA):
            raise _wrong(f"it is not a model for Ollama{_quoted(layer.media_type)}")
    sizes: dict[str, int] = {}
    for blob in (*manifest.layers, manifest.config):
        if sizes.setdefault(blob.digest, blob.size) != blob.size:
            raise _wrong("it gives two sizes for one blob")
    if sum(sizes.values()) > MAX_SIZE:
        raise _wrong("it gives impossible sizes")


def _descriptor(value: object, what: str) -> Descriptor:
    match value:
        case {"mediaType": str(media_type), "digest": str(digest), "size": int(size)} if (
            not isinstance(size, bool) and len(media_type) <= _MAX_MEDIA_TYPE
        ):
            pass
        case _:
            raise _wrong(f"{what} lacks a media type, a digest or a size")
    if not 0 <= size <= MAX_SIZE:
        raise _wrong(f"{what} has an impossible size")
    found = _DIGEST.fullmatch(digest)
    if not found:
        raise _wrong(f"{what} has a digest that is no SHA-256")
    return Descriptor(media_type, found[1], size)


def _quoted(media_type: object) -> str:
    return f" ({printable(media_type, 100)})" if isinstance(media_type, str) else ""


def _wrong(problem: str) -> PronkError:
    return failed(f"the registry's manifest cannot be used: {problem}")
