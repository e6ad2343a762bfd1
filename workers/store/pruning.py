"""Removing what nobody needs: blobs that lost their last name, and what was never finished.

Ollama may use the same library and know of models that Pronk does not. So nothing is removed from
`blobs` but files that Pronk has put there itself, and only those that were asked for, or that have
lain about for a week.
"""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Collection, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .disk import is_regular
from .manifests import remove_temporaries
from .own_files import OwnFiles
from .references import Named, References
from .staging import Staging

_log = logging.getLogger(__name__)

KEPT_SECONDS = 7 * 24 * 3600.0
"""How long a download that stopped, or a blob that no model was made of, waits for somebody."""

_RECORD = re.compile(r"[0-9a-f]{64}")
_BLOB = re.compile(r"sha256-([0-9a-f]{64})(?:\.json)?")


@dataclass(frozen=True, slots=True)
class Pruned:
    """What became of blobs that nothing needs."""

    removed: int
    """How many were removed."""
    left: int
    """Bytes of those that stay, because somebody else has put them there."""


def prune(digests: Collection[str], staging: Staging, named: Named, held: Set[str]) -> Pruned:
    """Removes those of these blobs that are Pronk's own and that nothing needs. Raises OSError."""
    if not named.complete:
        _log.warning("no blobs are removed: a manifest of the library cannot be read")
        return Pruned(0, 0)
    removed = left = 0
    for digest in digests:
        if digest in named.sizes or digest in held or _is_under_way(staging, digest):
            continue
        status = is_regular(staging.installed(digest))
        if status is None:
            continue
        if is_own(staging, digest):
            remove_own(staging, digest)
            removed += 1
        else:
            left += status.st_size
    return Pruned(removed, left)


def is_own(staging: Staging, digest: str) -> bool:
    """Whether the file in `blobs` is the very one that Pronk has put there."""
    status = is_regular(staging.installed(digest))
    recorded = staging.records.get(digest)
    return (
        status is not None
        and recorded is not None
        and (recorded.inode, recorded.size) == (status.st_ino, status.st_size)
    )


def remove_own(staging: Staging, digest: str) -> None:
    """Removes a blob and what is known about it. Raises OSError."""
    staging.installed(digest).unlink(missing_ok=True)
    staging.records.drop(digest)
    _log.info("removed blob sha256:%s, which nothing needs any more", digest)


def tidy(
    own: OwnFiles, staging: Staging, references: References, manifests: Path, blobs: Path
) -> None:
    """Removes what earlier processes left unfinished and nobody can use, or nobody came back for.

    Only while nothing else changes the library. Raises OSError.
    """
    for directory in (own.scratch, own.uploads):
        for path in list(directory.iterdir()):
            _remove(path)
    # What a process was writing that was killed: nobody looks for these names.
    for path in [*own.partial.glob("*.new"), *own.recorded.iterdir()]:
        if not _RECORD.fullmatch(path.name):
            _remove(path)
    remove_temporaries(manifests)
    named = references.scan()
    before = time.time() - KEPT_SECONDS
    for path, digest in _blobs_in(own.staged):
        if digest in named.sizes and is_own(staging, digest):
            staging.unstage(digest)
        elif _is_older(path, before):
            _remove(path)
    for path, _ in _blobs_in(own.partial):
        if _is_older(path, before):
            _remove(path)
    for digest in staging.records.digests():
        if _is_under_way(staging, digest):
            continue
        if is_regular(staging.installed(digest)) is None:
            if digest in named.sizes:
                _log.warning(
                    "blob sha256:%s is gone, and a model needs it; does another server remove "
                    "blobs from %s?",
                    digest,
                    blobs,
                )
            staging.records.drop(digest)
        elif (
            named.complete
            and digest not in named.sizes
            and _is_older(staging.installed(digest), before)
            and is_own(staging, digest)
        ):
            remove_own(staging, digest)


def _is_under_way(staging: Staging, digest: str) -> bool:
    return staging.staged(digest).exists() or staging.partial(digest).exists()


def _blobs_in(directory: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(directory.iterdir()):
        if match := _BLOB.fullmatch(path.name):
            yield path, match[1]


def _is_older(path: Path, before: float) -> bool:
    """Whether a file was not touched since: written, renamed, or given another name."""
    try:
        return path.lstat().st_ctime < before
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    """Removes a file, a link or a whole directory; never anything that a link leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(FileNotFoundError):
            path.unlink()
