"""Writing and removing the manifests of a library, each at one instant."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from ...protocol.names import ModelName, name_of_parts
from .disk import directory_below, make_directory, new_name, sync_directory, write_new
from .layout import Library

TEMPORARY = ".pronk-"
"""What the names of unfinished files among the manifests begin with: no name of a model does."""

_TRIES = 3


def place_of(library: Library, manifests: Path, name: ModelName) -> ModelName:
    """The name, in the upper and lower case that it has in the library as far as it is there: names
    that differ in nothing else are the same.
    """
    if found := library.find(name):
        return found
    parts: list[str] = []
    for part in name.parts:
        try:
            entries = os.listdir(manifests.joinpath(*parts))  # noqa: PTH208
        except OSError:
            entries = []
        same = sorted(entry for entry in entries if entry.lower() == part.lower())
        parts.append(part if part in same or not same else same[0])
    host, namespace, model, tag = parts
    return name_of_parts((host, namespace, model, tag)) or name


def write_manifest(manifests: Path, name: ModelName, content: bytes, between: Path) -> None:
    """Writes the manifest of exactly this name, under the unused path `between` first.

    Raises OSError; then it is as it was before.
    """
    make_directory(manifests)
    write_new(between, content)
    try:
        for last in (False,) * (_TRIES - 1) + (True,):
            try:
                _rename(manifests, name, content, between)
                return
            except FileNotFoundError:
                # Ollama removes directories that it finds empty.
                if last:
                    raise
    finally:
        between.unlink(missing_ok=True)


def _rename(manifests: Path, name: ModelName, content: bytes, between: Path) -> None:
    *parts, tag = name.parts
    with directory_below(manifests, parts, create=True) as directory:
        try:
            os.rename(between, tag, dst_dir_fd=directory)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # A link has the manifests on another disk than the rest.
            beside = manifests / f"{TEMPORARY}{new_name()}"
            try:
                write_new(beside, content)
                os.rename(beside, tag, dst_dir_fd=directory)
            finally:
                beside.unlink(missing_ok=True)
        os.fsync(directory)


def remove_manifest(manifests: Path, name: ModelName) -> None:
    """Removes the manifest of exactly this name, and directories that are empty without it.

    Raises OSError.
    """
    *parts, tag = name.parts
    with directory_below(manifests, parts) as directory:
        os.unlink(tag, dir_fd=directory)
        os.fsync(directory)
    while parts:
        with (
            suppress(OSError),  # not empty, or gone already
            directory_below(manifests, parts[:-1]) as above,
        ):
            os.rmdir(parts[-1], dir_fd=above)
        parts.pop()


def remove_temporaries(manifests: Path) -> None:
    """Removes what a process that was killed left among the manifests."""
    with suppress(FileNotFoundError, NotADirectoryError):
        found = [entry for entry in manifests.iterdir() if entry.name.startswith(TEMPORARY)]
        for path in found:
            with suppress(IsADirectoryError, PermissionError, FileNotFoundError):
                path.unlink()
        if found:
            sync_directory(manifests)
