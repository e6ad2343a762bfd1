"""Ollama's model library on disk, as it is read; `writing` changes it.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import orjson

from ...protocol.logs import RateLimitedLog
from ...protocol.names import MAX_NAME, ModelName, name_of_parts
from .files import Damaged, Remembered, problem_of, read_small, stamp_of

_log = logging.getLogger(__name__)

MEDIA_TYPE = "application/vnd.ollama.image."
"""What a layer's media type begins with; `model`, `template`, `system`, … follow."""

MAX_MANIFEST = 1024 * 1024
_MAX_CONFIG = 1024 * 1024
_MAX_TEXT = 2 * 1024 * 1024
_MAX_LAYERS = 10_000
_MAX_SIZE = 2**62
_MAX_WORD = 128
_MAX_FAMILIES = 16
_REMEMBERED = 16_384
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_name_of_parts = lru_cache(_REMEMBERED)(name_of_parts)
"""Of most names, every list makes the same again."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One part of a model."""

    kind: str
    """The media type behind `application/vnd.ollama.image.`, or all of another one."""
    digest: str
    size: int
    """Bytes, as the manifest says."""
    origin: str = ""
    """The model that it was taken over from, or the path that it had, where the manifest tells."""


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
        self._manifests = str(root / "manifests")
        self._blobs = str(root / "blobs")
        self._known: Remembered[StoredModel] = Remembered(_REMEMBERED)
        self._noted = RateLimitedLog(_log)

    def models(self) -> Iterator[StoredModel]:
        """Every model that is whole; of the others a line in the log tells, now and then."""
        plain: set[str] = set()
        for name in self.names():
            try:
                yield self.load(name, plain)
            except Damaged as error:
                self._noted.warning("damaged model", f"{name.display}: {error}")
            except FileNotFoundError:  # removed since it was listed
                continue

    def names(self) -> Iterator[ModelName]:
        """The name of every manifest, whole or not."""
        root = self._manifests
        for host in self._entries(root):
            for namespace in self._entries(root, host):
                for model in self._entries(root, host, namespace):
                    for tag in self._entries(root, host, namespace, model):
                        if name := _name_of_parts((host, namespace, model, tag)):
                            yield name

    def find(self, name: ModelName) -> ModelName | None:
        """The name in the library, in its own upper and lower case, that means the same model."""
        if os.path.lexists("/".join((self._manifests, *name.parts))):
            return name
        return next(self._same(name, ()), None)

    def load(self, name: ModelName, plain: set[str] | None = None) -> StoredModel:
        """The model whose manifest has exactly this name. Whoever loads many gives the same set
        `plain` to all, in which directories are remembered that were looked at.

        Raises FileNotFoundError when there is no such manifest, and `Damaged` when the model
        cannot be used.
        """
        try:
            path, status = _regular(self._manifests, name.parts, "its manifest", plain)
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError from None
        except OSError as error:
            raise problem_of(error, "its manifest") from None
        stamp = stamp_of(status)
        model = self._known.get(name, stamp)
        if model is None:
            model = self._known.keep(name, stamp, self._read(name, Path(path), status))
        elif model.weights:
            self._look_at(model.weights.name, "its weights file")
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

    def manifest(self, name: ModelName) -> bytes:
        """The manifest that has exactly this name, as it is. Raises `Damaged`."""
        what = "its manifest"
        try:
            path, _ = _regular(self._manifests, name.parts, what)
        except OSError as error:
            raise problem_of(error, what) from None
        return read_small(Path(path), MAX_MANIFEST, what)

    def _read(self, name: ModelName, path: Path, status: os.stat_result) -> StoredModel:
        raw = read_small(path, MAX_MANIFEST, "its manifest")
        parts, described = manifest_parts(raw)
        size = sum(layer.size for layer in parts)
        config = Config()
        if described:
            size += described.size
            what = "its config"
            blob = read_small(self._blob(described.digest, what), _MAX_CONFIG, what)
            config = _config(_json_object(blob, what))
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

    def _blob(self, digest: str, what: str) -> Path:
        return Path(self._look_at(f"sha256-{digest}", what))

    def _look_at(self, blob: str, what: str) -> str:
        try:
            path, _ = _regular(self._blobs, (blob,), what)
            if not os.access(path, os.R_OK):
                raise PermissionError
        except OSError as error:
            raise problem_of(error, what) from None
        return path

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
        for entry in sorted(self._entries(self._manifests, *found)):
            if entry.lower() == wanted:
                yield from self._same(name, (*found, entry))


def _regular(
    top: str, parts: Sequence[str], what: str, plain: set[str] | None = None
) -> tuple[str, os.stat_result]:
    """Path and status of a regular file at `parts` below `top`, through whatever links.

    `top` itself may be a link: that is its owner's choice. A link below it that leads elsewhere
    would let a model hand out any file of the host. Directories in `plain` are known to be none.
    Raises `Damaged` and OSError.
    """
    path = top
    for part in parts[:-1]:
        path = f"{path}/{part}"
        if plain is None or path not in plain:
            if stat.S_ISLNK(os.lstat(path).st_mode):
                _require_within(top, parts, what)
            elif plain is not None:
                plain.add(path)
    path = f"{path}/{parts[-1]}"
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        _require_within(top, parts, what)
        status = os.stat(path)  # noqa: PTH116
    if not stat.S_ISREG(status.st_mode):
        raise Damaged(f"{what} is not a regular file")
    return path, status


def _require_within(top: str, parts: Sequence[str], what: str) -> None:
    real = os.path.realpath(top)
    if os.path.commonpath((os.path.realpath("/".join((top, *parts))), real)) != real:
        raise Damaged(f"{what} is a link that leads out of the library")


def manifest_parts(raw: bytes) -> tuple[tuple[Layer, ...], Layer | None]:
    """The layers that a manifest names, and its config, which may be missing. Raises `Damaged`."""
    manifest = _json_object(raw, "its manifest")
    layers = manifest.get("layers")
    if not isinstance(layers, list) or len(cast(list[Any], layers)) > _MAX_LAYERS:
        raise Damaged("its manifest has no list of layers")
    parts = tuple(_layer(layer) for layer in cast(list[Any], layers))
    described = manifest.get("config")
    config = None
    if isinstance(described, dict) and cast(dict[str, Any], described).get("digest"):
        config = _layer(cast(dict[str, Any], described))
    if sum(layer.size for layer in parts) + (config.size if config else 0) > _MAX_SIZE:
        raise Damaged("its manifest gives impossible sizes")
    return parts, config


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
    origin = cast(dict[str, Any], value).get("from")
    return Layer(
        media_type.removeprefix(MEDIA_TYPE),
        match[1],
        size,
        origin if isinstance(origin, str) and len(origin) <= MAX_NAME else "",
    )


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
    """A word to be shown; empty for what would be something else than a part of a line."""
    return value[:_MAX_WORD] if isinstance(value, str) and value.isprintable() else ""
