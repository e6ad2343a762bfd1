"""Ollama's model library on disk, read and never written.

    manifests/<host>/<namespace>/<model>/<tag>   JSON: which blobs make up the model
    blobs/sha256-<hexadecimal digest>            weights, template, system prompt, parameters, …

A model's digest is the SHA-256 of its manifest's bytes, as Ollama's is. The directory may be
missing, which is an empty library, and may change beneath us at any time: everything is looked at
again on each question, and only what a stat shows unchanged is taken from memory.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson

from ...protocol.logs import RateLimitedLog
from ...protocol.names import ModelName, name_of_parts
from .files import Damaged, Remembered, problem_of, read_small, stamp_of

_log = logging.getLogger(__name__)

MEDIA_TYPE = "application/vnd.ollama.image."
"""What a layer's media type begins with; `model`, `template`, `system`, … follow."""

_MAX_MANIFEST = 1024 * 1024
_MAX_CONFIG = 1024 * 1024
_MAX_TEXT = 2 * 1024 * 1024
_MAX_LAYERS = 10_000
_MAX_SIZE = 2**62
_MAX_WORD = 128
_MAX_FAMILIES = 16
_REMEMBERED = 16_384
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Layer:
    """One part of a model."""

    kind: str
    """The media type behind `application/vnd.ollama.image.`, or all of another one."""
    digest: str
    size: int
    """Bytes, as the manifest says."""


@dataclass(frozen=True, slots=True)
class Config:
    """What a model's config blob says about it; empty where it does not say."""

    format: str = ""
    family: str = ""
    families: tuple[str, ...] = ()
    parameter_size: str = ""
    quantization: str = ""
    renderer: str = ""
    """Ollama's name for code of its own that writes prompts in the template's place."""
    parser: str = ""
    """The same for what reads answers."""
    requires: str = ""
    """The least version of Ollama that can run it."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model that can be listed. Nothing is known about its weights yet but where they are."""

    name: ModelName
    digest: str
    modified_at: float
    """Unix time."""
    size: int
    """Bytes on disk of all its parts, as the manifest says."""
    config: Config
    weights: Path | None
    """The GGUF file; None where the model has none, such as one in safetensors."""
    layers: tuple[Layer, ...] = ()
    blob: str | None = None
    """Digest of the GGUF file."""


class Library:
    """The library below one directory. All methods may block on the disk, and run in any thread."""

    def __init__(self, root: Path) -> None:
        self._manifests = root / "manifests"
        self._blobs = root / "blobs"
        self._known: Remembered[StoredModel] = Remembered(_REMEMBERED)
        self._noted = RateLimitedLog(_log)

    def models(self) -> Iterator[StoredModel]:
        """Every model that is whole; of the others a line in the log tells, now and then."""
        for name in self.names():
            try:
                yield self.load(name)
            except Damaged as error:
                self._noted.warning("damaged model", f"{name.display}: {error}")
            except FileNotFoundError:  # removed since it was listed
                continue

    def names(self) -> Iterator[ModelName]:
        """The name of every manifest, whole or not."""
        root = str(self._manifests)
        for host in self._entries(root):
            for namespace in self._entries(root, host):
                for model in self._entries(root, host, namespace):
                    for tag in self._entries(root, host, namespace, model):
                        if name := name_of_parts((host, namespace, model, tag)):
                            yield name

    def find(self, name: ModelName) -> ModelName | None:
        """The name in the library, in its own upper and lower case, that means the same model."""
        if os.path.lexists(self._manifest(name)):
            return name
        return next(self._same(name, ()), None)

    def load(self, name: ModelName) -> StoredModel:
        """The model whose manifest has exactly this name.

        Raises FileNotFoundError when there is no such manifest, and `Damaged` when the model
        cannot be used.
        """
        path = self._manifest(name)
        try:
            status = self._regular(path, self._manifests, "its manifest")
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError from None
        except OSError as error:
            raise problem_of(error, "its manifest") from None
        stamp = stamp_of(status)
        model = self._known.get(name, stamp)
        if model is None:
            model = self._known.keep(name, stamp, self._read(name, path, status))
        elif model.weights:
            self._blob(model.weights.name.removeprefix("sha256-"), "its weights file")
        return model

    def blob(self, digest: str) -> Path:
        """The file that has this digest for its name. Raises `Damaged` where it cannot be used."""
        return self._blob(digest, "its weights file")

    def part(self, layer: Layer) -> Path:
        """The file of a layer. Raises `Damaged` where it cannot be used."""
        return self._blob(layer.digest, f"its {layer.kind}")

    def text(self, layer: Layer) -> str:
        """The text in a layer, such as a template. Raises `Damaged`."""
        what = f"its {layer.kind}"
        return read_small(self._blob(layer.digest, what), _MAX_TEXT, what).decode(
            "utf-8", "replace"
        )

    def _read(self, name: ModelName, path: Path, status: os.stat_result) -> StoredModel:
        raw = read_small(path, _MAX_MANIFEST, "its manifest")
        manifest = _json_object(raw, "its manifest")
        layers = manifest.get("layers")
        if not isinstance(layers, list) or len(cast(list[Any], layers)) > _MAX_LAYERS:
            raise Damaged("its manifest has no list of layers")
        parts = tuple(_layer(layer) for layer in cast(list[Any], layers))
        size = sum(layer.size for layer in parts)
        config = Config()
        described = manifest.get("config")
        if isinstance(described, dict) and cast(dict[str, Any], described).get("digest"):
            layer = _layer(cast(dict[str, Any], described))
            size += layer.size
            what = "its config"
            blob = read_small(self._blob(layer.digest, what), _MAX_CONFIG, what)
            config = _config(_json_object(blob, what))
        if size > _MAX_SIZE:
            raise Damaged("its manifest gives impossible sizes")
        weights = [layer for layer in parts if layer.kind == "model"]
        return StoredModel(
            name=name,
            digest=hashlib.sha256(raw).hexdigest(),
            modified_at=max(0.0, status.st_mtime),
            size=size,
            config=config,
            # The last one counts, as with Ollama.
            weights=self._blob(weights[-1].digest, "its weights file") if weights else None,
            layers=parts,
            blob=weights[-1].digest if weights else None,
        )

    def _manifest(self, name: ModelName) -> Path:
        return self._manifests.joinpath(*name.parts)

    def _blob(self, digest: str, what: str) -> Path:
        path = self._blobs / f"sha256-{digest}"
        try:
            self._regular(path, self._blobs, what)
        except OSError as error:
            raise problem_of(error, what) from None
        return path

    def _regular(self, path: Path, directory: Path, what: str) -> os.stat_result:
        """The status of a readable regular file within `directory`, through whatever links.

        `directory` itself may be a link: that is its owner's choice. A link below it that leads
        elsewhere would let a model hand out any file of the host.
        """
        top = os.path.realpath(directory)
        if os.path.commonpath((os.path.realpath(path), top)) != top:
            raise Damaged(f"{what} is a link that leads out of the library")
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise Damaged(f"{what} is not a regular file")
        if not os.access(path, os.R_OK):
            raise PermissionError
        return status

    def _entries(self, *parts: str) -> list[str]:
        try:
            return os.listdir(os.path.join(*parts))  # noqa: PTH118, PTH208
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self._noted.warning("unreadable directory", f"in the library: {error.strerror}")
            return []

    def _same(self, name: ModelName, found: tuple[str, ...]) -> Iterator[ModelName]:
        if len(found) == len(name.key):
            if same := name_of_parts(cast(tuple[str, str, str, str], found)):
                yield same
            return
        wanted = name.key[len(found)]
        for entry in sorted(self._entries(str(self._manifests), *found)):
            if entry.lower() == wanted:
                yield from self._same(name, (*found, entry))


def _json_object(raw: bytes, what: str) -> dict[str, Any]:
    try:
        value = orjson.loads(raw)
    except ValueError:
        raise Damaged(f"{what} is not valid JSON") from None
    if not isinstance(value, dict):
        raise Damaged(f"{what} is not a JSON object")
    return cast(dict[str, Any], value)


def _layer(value: object) -> Layer:
    match value:
        case {"mediaType": str(media_type), "digest": str(digest), "size": int(size)} if (
            not isinstance(size, bool) and 0 <= size <= _MAX_SIZE
        ):
            pass
        case _:
            raise Damaged("its manifest has a layer that is none")
    match = _DIGEST.fullmatch(digest)
    if not match:
        raise Damaged("its manifest has a digest that is none")
    return Layer(media_type.removeprefix(MEDIA_TYPE), match[1], size)


def _config(value: dict[str, Any]) -> Config:
    families = value.get("model_families")
    return Config(
        format=_word(value.get("model_format")),
        family=_word(value.get("model_family")),
        families=tuple(_word(family) for family in cast(list[Any], families)[:_MAX_FAMILIES])
        if isinstance(families, list)
        else (),
        parameter_size=_word(value.get("model_type")),
        quantization=_word(value.get("file_type")),
        renderer=_word(value.get("renderer")),
        parser=_word(value.get("parser")),
        requires=_word(value.get("requires")),
    )


def _word(value: object) -> str:
    return value[:_MAX_WORD] if isinstance(value, str) else ""
