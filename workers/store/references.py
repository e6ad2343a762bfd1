"""Which blobs the manifests of a library name. What is named is never pruned."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import orjson

from ...protocol.names import name_of_parts
from .files import Damaged, Remembered, read_small, stamp_of
from .layout import MAX_MANIFEST

_REMEMBERED = 16_384
_PREFIX = "sha256:"
_DEEPEST = 16
"""Levels of directories that are looked into; manifests lie at the fourth."""


@dataclass(slots=True)
class Named:
    """What all manifests say together."""

    sizes: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    """The sizes that are given for each blob, by digest."""
    models: Counter[str] = field(default_factory=Counter[str])
    """How many names each model has, by its digest."""
    complete: bool = True
    """Whether every manifest could be read. Where not, any blob may be named."""


@dataclass(frozen=True, slots=True)
class _Manifest:
    digest: str
    blobs: tuple[tuple[str, int], ...]


class References:
    """Reads the manifests; those that have not changed, from memory. For many threads."""

    def __init__(self, manifests: Path) -> None:
        self._manifests = manifests
        self._known: Remembered[_Manifest] = Remembered(_REMEMBERED)

    def scan(self) -> Named:
        """What is named at this moment."""
        named = Named()
        self._scan(str(self._manifests), (), named, frozenset())
        return named

    def _scan(self, path: str, parts: tuple[str, ...], named: Named, above: frozenset[str]) -> None:
        if len(parts) > _DEEPEST:
            named.complete = False
            return
        try:
            with os.scandir(path) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        except OSError:
            named.complete = False
            return
        for entry in found:
            below = (*parts, entry.name)
            if not entry.is_dir():
                self._read(Path(entry.path), below, named)
                continue
            # Links are followed, because a reader follows them, but not round in circles.
            real = os.path.realpath(entry.path)
            if real not in above:
                self._scan(entry.path, below, named, above | {real})

    def _read(self, path: Path, parts: tuple[str, ...], named: Named) -> None:
        try:
            stamp = stamp_of(path.stat())
            manifest = self._known.get(path, stamp)
            if manifest is None:
                raw = read_small(path, MAX_MANIFEST, "it")
                manifest = self._known.keep(path, stamp, _parsed(raw))
        except FileNotFoundError:
            # Removed since it was listed, or a link to nothing.
            named.complete &= not path.is_symlink()
            return
        except (OSError, Damaged, ValueError):
            # What cannot be a manifest, such as .DS_Store, names nothing.
            named.complete &= len(parts) != 4 or name_of_parts(parts) is None
            return
        named.models[manifest.digest] += 1
        for digest, size in manifest.blobs:
            named.sizes.setdefault(digest, set()).add(size)


def _parsed(raw: bytes) -> _Manifest:
    """Every digest that occurs anywhere. Raises ValueError for what is no JSON object."""
    value = orjson.loads(raw)
    if not isinstance(value, dict):
        raise ValueError
    blobs: list[tuple[str, int]] = []
    waiting: list[object] = [value]
    while waiting:
        match waiting.pop():
            case dict() as fields:
                each = cast(dict[str, Any], fields)
                digest, size = each.get("digest"), each.get("size")
                if isinstance(digest, str):
                    blobs.append((_plain(digest), size if isinstance(size, int) else -1))
                waiting += each.values()
            case list() as items:
                waiting += cast(list[object], items)
            case str() as text if text.startswith("sha256"):
                blobs.append((_plain(text), -1))
            case _:
                pass
    return _Manifest(hashlib.sha256(raw).hexdigest(), tuple(blobs))


def _plain(digest: str) -> str:
    return digest.replace("-", ":").removeprefix(_PREFIX).lower()
