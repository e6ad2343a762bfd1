"""Push: a model of the library is brought to the registry that its name begins with.

The manifest goes last: until it is there the registry knows nothing of the model, so a push that
breaks off, or is cancelled, changes nothing for those who pull. What the registry has already is
not sent again, by this push or by the next.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import orjson

from ...protocol.errors import Code, PronkError
from ...protocol.names import ModelName
from .files import Damaged
from .layout import Layer, Library, manifest_parts
from .registry.client import Registry, Repository
from .registry.manifests import DOCKER_MANIFEST
from .report import Report
from .writing import Writer, not_found


@dataclass(frozen=True, slots=True)
class _Parcel:
    """A model, as it is to be sent."""

    name: ModelName
    manifest: bytes
    media_type: str
    blobs: tuple[Layer, ...]
    """Each once, in the manifest's order; the config is the last one."""


async def push(
    name: ModelName,
    insecure: bool,
    *,
    library: Library,
    writer: Writer,
    registry: Registry,
    report: Report,
) -> None:
    """Returns once the registry has the model. Raises `PronkError`; can be cancelled."""
    report("retrieving manifest")
    with writer.hold() as hold:
        parcel = await asyncio.to_thread(_packed, library, name)
        for blob in parcel.blobs:
            hold.add(blob.digest)
        files = await asyncio.to_thread(_files, library, parcel)
        repository = registry.repository(parcel.name, insecure=insecure)
        sources: dict[str, str] | None = None
        for blob, file in zip(parcel.blobs, files, strict=True):
            tell = _Teller(report, blob)
            tell(0)
            if await repository.blob_size(blob.digest) is None:
                if sources is None:
                    sources = await asyncio.to_thread(_sources, library, parcel, repository)
                await repository.upload_blob(blob.digest, file, tell, sources.get(blob.digest))
            tell(blob.size)
        report("pushing manifest")
        await repository.put_manifest(parcel.manifest, parcel.media_type)
    report("success")


class _Teller:
    """Says how much of a blob is there, and never less than before."""

    def __init__(self, report: Report, blob: Layer) -> None:
        self._report = report
        self._blob = blob
        self._farthest = -1

    def __call__(self, there: int) -> None:
        if there > self._farthest:
            self._farthest = there
            digest, size = self._blob.digest, self._blob.size
            self._report(f"pushing {digest[:12]}", f"sha256:{digest}", size, there)


def _packed(library: Library, name: ModelName) -> _Parcel:
    found = library.find(name)
    if found is None:
        raise not_found(name)
    try:
        manifest = library.manifest(found)
        layers, config = manifest_parts(manifest)
    except Damaged as error:
        raise _damaged(found, error) from None
    blobs = _all(layers, config)
    media_type = orjson.loads(manifest).get("mediaType")
    return _Parcel(
        found,
        manifest,
        media_type if isinstance(media_type, str) else DOCKER_MANIFEST,
        tuple({blob.digest: blob for blob in blobs}.values()),
    )


def _all(layers: tuple[Layer, ...], config: Layer | None) -> tuple[Layer, ...]:
    return layers if config is None else (*layers, config)


def _files(library: Library, parcel: _Parcel) -> list[Path]:
    """The blobs' files, in their order. Raises `PronkError` where one of them is not whole."""
    try:
        files = [library.part(blob) for blob in parcel.blobs]
        for blob, file in zip(parcel.blobs, files, strict=True):
            if file.stat().st_size != blob.size:
                raise Damaged(f"its {blob.kind} does not have the size that its manifest gives")
    except (Damaged, OSError) as error:
        raise _damaged(parcel.name, error) from None
    return files


def _sources(library: Library, parcel: _Parcel, repository: Repository) -> dict[str, str]:
    """For each blob, another repository of the same registry that has it, if this library can
    tell: many models are made of the same weights.
    """
    wanted = {blob.digest for blob in parcel.blobs}
    sources: dict[str, str] = {}
    for name in library.names():
        path = f"{name.namespace}/{name.model}"
        if name.host.lower() == parcel.name.host.lower() and path != repository.path:
            try:
                layers, config = manifest_parts(library.manifest(name))
            except Damaged:
                continue
            there = {blob.digest for blob in _all(layers, config)}
            sources |= dict.fromkeys(there & wanted, path)
    return sources


def _damaged(name: ModelName, error: Damaged | OSError) -> PronkError:
    problem = error if isinstance(error, Damaged) else "a part of it cannot be read"
    return PronkError(
        Code.LOAD_FAILED,
        f"model '{name.display}' is damaged in the library: {problem}; pull or create it again",
    )
