"""Changing a library on disk: the one place where anything is written to or removed from it.

A manifest is written after its blobs, at one instant, so that a kill at any moment leaves a library
that lists and serves what was complete. Only what Pronk itself has put there is ever pruned.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ...protocol.errors import Code, PronkError
from ...protocol.names import ModelName
from .disk import clear_errors, free_bytes, sync_directory
from .files import Damaged, read_small
from .holds import Hold, Holds
from .layout import MAX_MANIFEST, Layer, Library, manifest_parts
from .manifests import place_of, remove_manifest, write_manifest
from .neighbours import Neighbours
from .own_files import OwnFiles
from .pruning import prune, tidy
from .references import References
from .staging import Staging

_log = logging.getLogger(__name__)

_TRIES = 3
"""How often blobs are put back that another program removed while their manifest was written."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """What became of the model that had a name before."""

    unnamed: str | None
    """Its digest, if no other name stands for it."""
    removed: int
    """How many of its blobs were removed, because nothing needs them any more."""


class Writer:
    """Changes the library of one directory. Blocking; any thread.

    The first change takes the library's lock, which is held for the life of the process. All
    methods that change something raise `PronkError`: another server has the lock, the library may
    not be written, its disk is full.
    """

    def __init__(self, root: Path) -> None:
        umask = os.umask(0o022)
        os.umask(umask)
        self._manifests = root / "manifests"
        self._blobs = root / "blobs"
        self._own = OwnFiles(root, self._blobs)
        self._library = Library(root)
        self._references = References(self._manifests)
        self._staging = Staging(self._own, self._blobs, self._references, umask)
        self._neighbours = Neighbours(root)
        self._changing = threading.RLock()
        """Held by whoever changes what manifests name, or looks at it in order to remove."""
        self._holds = Holds()
        self._removing = threading.Lock()
        """Held from a look at who holds blobs until those that nobody holds are removed."""
        self._leaving: set[str] = set()
        """Staged blobs that were committed while somebody else still held them."""

    def hold(self) -> Hold:
        """What is added to it is not pruned until it is closed."""
        return Hold(self._holds)

    def find(self, digest: str) -> Path | None:
        """A whole blob, wherever it lies. None if it is not there.

        Reads all of a file that nobody has vouched for yet. Who is to use it holds it first.
        """
        with self._removing:
            pass  # whoever removes blobs now may have looked at who holds them before that
        with clear_errors():
            return self._staging.find(digest)

    def partial(self, digest: str) -> Path:
        """Where an incomplete download of this blob grows, in a directory that is there. A journal
        may lie beside it, as `<that>.json`.
        """
        with self._change():
            return self._staging.partial(digest)

    def adopt(self, path: Path, digest: str) -> Path:
        """Takes in a file, on the library's own disk, that was verified to be this blob; it is gone
        from where it was, and on the disk, afterwards. Returns where it lies.
        """
        with self._change():
            self._staging.partial(digest)  # raises what is to be said of a digest that is none
        with clear_errors():
            mark = self._staging.settle(path)  # takes long, so nobody else waits for it
        with self._change():
            return self._staging.adopt(path, digest, mark)

    def keep(self, content: bytes) -> str:
        """Takes in a small blob (template, config, …); returns its digest."""
        with self._change():
            return self._staging.keep(content)

    def discard(self, digest: str) -> None:
        """Removes a blob again that was adopted and is to be part of no model, unless it lies in
        the library already or somebody holds it.
        """
        with self._change(), self._removing:
            if not self._holds.count(digest):
                self._staging.discard(digest)

    def scratch(self) -> Path:
        """An empty directory on the library's disk, for its caller to remove. What is left of it
        goes when a store process starts.
        """
        with self._change():
            return self._own.new_scratch()

    def incoming(self) -> Path:
        """A path on the library's disk for a file that is being uploaded; nothing has it yet."""
        with self._change():
            return self._own.uploads / self._own.between().name

    def commit(self, name: ModelName, manifest: bytes) -> str:
        """Writes a model's manifest, behind the blobs that it names. Returns the model's digest.

        All of them have to be there, adopted, kept, or in the library already. A model that has the
        name, in whatever upper and lower case, is replaced.
        """
        self._write(name, manifest)
        return hashlib.sha256(manifest).hexdigest()

    def replace(self, name: ModelName, manifest: bytes) -> Replaced:
        """As `commit`, and says what became of the model that had the name."""
        before = self.digest_of(name)
        removed = self._write(name, manifest)
        return Replaced(before if before and not self.is_named(before) else None, removed)

    def copy(self, source: ModelName, destination: ModelName) -> str | None:
        """Gives a model another name, too. Returns the digest of the model that had this name, if
        no other stands for it.
        """
        with self._change():
            found = self._library.find(source)
            if found is None:
                raise not_found(source)
            try:
                self._library.load(found)
                content = self._content(found)
            except FileNotFoundError:
                raise not_found(source) from None
            except Damaged as error:
                raise PronkError(
                    Code.LOAD_FAILED, f"model '{source.display}' cannot be copied: {error}"
                ) from None
            place = place_of(self._library, self._manifests, destination)
            before = self.digest_of(place)
            if place != found:
                replaced = self._blobs_of(place)
                write_manifest(self._manifests, place, content, self._own.between())
                self._prune(replaced, f"model '{place.display}' was replaced")
            return before if before and not self.is_named(before) else None

    def delete(self, name: ModelName) -> str | None:
        """Removes a name, and the blobs that Pronk has put there and nothing needs any more.

        Returns the digest of the model, if no other name stands for it.
        """
        with self._change():
            found = self._library.find(name)
            if found is None:
                raise not_found(name)
            before = self.digest_of(found)
            blobs = self._blobs_of(found)
            try:
                remove_manifest(self._manifests, found)
            except FileNotFoundError:
                raise not_found(name) from None
            self._prune(blobs, f"model '{found.display}' was deleted")
            return before if before and not self.is_named(before) else None

    def require_room(self, size: int) -> None:
        """Raises `PronkError` (storage_full) where the disk has no room for `size` more bytes."""
        with clear_errors():
            free = free_bytes(self._own.top)
        if size > free:
            raise PronkError(
                Code.STORAGE_FULL,
                f"the disk of the model library has no room: {_gigabytes(size)} are needed and "
                f"{_gigabytes(free)} are free; delete models that nobody needs, or ask whoever "
                "runs this server for more room",
            )

    def digest_of(self, name: ModelName) -> str | None:
        """The digest of the model that has this name; None if there is none, or none to be read."""
        found = self._library.find(name)
        if found is None:
            return None
        try:
            return hashlib.sha256(self._content(found)).hexdigest()
        except Damaged:
            return None

    def is_named(self, model: str) -> bool:
        """Whether a name stands for the model of this digest."""
        return self._references.scan().models[model] > 0

    def tidy(self) -> None:
        """Removes what earlier processes left, and what nobody has come back for in a week.

        For the start of a process. Does nothing where there is nothing, where something was
        changed already, where another server has the lock, and where the library may not be
        written.
        """
        with self._changing:
            if self._own.locked or not self._own.top.is_dir():
                return
            try:
                self._own.open()
                tidy(self._own, self._staging, self._references, self._manifests, self._blobs)
            except (OSError, PronkError) as error:
                _log.info("what is unfinished in the library stays as it is: %s", error)
            finally:
                self._own.close()  # the first change takes the lock again

    def give_up(self) -> None:
        """Lets another process change the library from now on."""
        with self._changing:
            self._own.close()

    @contextmanager
    def _change(self) -> Iterator[None]:
        """What every change happens within."""
        with self._changing, clear_errors():
            self._open()
            yield

    def _open(self) -> None:
        first = not self._own.locked
        self._own.open()
        if first:
            self._blobs.mkdir(exist_ok=True)
            _log.info("this process changes the library from now on")
        self._neighbours.look()
        # Only whoever held one of them had to have it there.
        leaving, self._leaving = self._leaving, set()
        self._unstage(leaving, 0)

    def _write(self, name: ModelName, manifest: bytes) -> int:
        layers = _layers_of(name, manifest)
        with clear_errors(), self.hold() as hold:
            for layer in layers:
                hold.add(layer.digest)
                # Files may have to be read, which takes long, so nobody else waits for it.
                self._require(name, layer, self.find(layer.digest))
            with self._change():
                place = place_of(self._library, self._manifests, name)
                removed = self._commit(place, manifest, layers)
                # This hold is one of those that count.
                self._unstage({layer.digest for layer in layers}, 1)
                return removed

    def _commit(self, place: ModelName, manifest: bytes, layers: Collection[Layer]) -> int:
        """Returns how many blobs of the model that had the name were removed."""
        before = self._old_content(place)
        replaced = self._blobs_of(place)
        for layer in layers:
            self._install(place, layer)
        sync_directory(self._blobs)
        write_manifest(self._manifests, place, manifest, self._own.between())
        # Until its manifest was there, another server could remove a blob as one of nobody's.
        for _ in range(_TRIES):
            missing = [layer for layer in layers if not self._lies(layer)]
            if not missing:
                return self._prune(replaced, f"model '{place.display}' was replaced")
            self._neighbours.blobs_vanished(len(missing))
            try:
                for layer in missing:
                    self._install(place, layer)
            except PronkError:
                self._restore(place, before)
                raise
            sync_directory(self._blobs)
        self._restore(place, before)
        raise PronkError(
            Code.UNAVAILABLE,
            f"another program removes blobs of model '{place.display}' from the library as soon as "
            "they are there; try again when it is done",
            retry_after=10.0,
        )

    def _install(self, name: ModelName, layer: Layer) -> None:
        if not self._staging.install(layer.digest):
            raise _missing(name, layer)
        self._require(name, layer, self._staging.installed(layer.digest))

    def _require(self, name: ModelName, layer: Layer, path: Path | None) -> None:
        if path is None:
            raise _missing(name, layer)
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise _missing(name, layer) from None
        if size != layer.size:
            raise PronkError(
                Code.INVALID_REQUEST,
                f"the manifest of model '{name.display}' is wrong: it gives sha256:{layer.digest} "
                f"{layer.size} bytes, and it has {size}",
            )

    def _lies(self, layer: Layer) -> bool:
        return self._staging.sound(self._staging.installed(layer.digest), layer.digest)

    def _restore(self, place: ModelName, before: bytes | None) -> None:
        if before is None:
            with suppress(FileNotFoundError):  # the other program may have removed it, too
                remove_manifest(self._manifests, place)
        else:
            write_manifest(self._manifests, place, before, self._own.between())

    def _unstage(self, digests: Collection[str], own_holds: int) -> None:
        with self._removing:
            for digest in digests:
                if self._holds.count(digest) > own_holds:
                    self._leaving.add(digest)
                else:
                    self._staging.unstage(digest)

    def _prune(self, digests: Collection[str], why: str) -> int:
        named = self._references.scan()
        with self._removing:
            done = prune(digests, self._staging, named, self._holds.digests())
        if done.left:
            _log.info(
                "%s; %s of it stay in the library, because Pronk did not put them there: Ollama "
                "removes what is not needed when it starts, and docs/library.md says how to do "
                "without Ollama",
                why,
                _gigabytes(done.left),
            )
        return done.removed

    def _content(self, name: ModelName) -> bytes:
        return read_small(self._manifests.joinpath(*name.parts), MAX_MANIFEST, "its manifest")

    def _old_content(self, name: ModelName) -> bytes | None:
        try:
            return self._content(name)
        except Damaged:
            return None

    def _blobs_of(self, name: ModelName) -> set[str]:
        try:
            layers, config = manifest_parts(self._content(name))
        except Damaged:
            return set()
        return {layer.digest for layer in (*layers, *([config] if config else []))}


def not_found(name: ModelName) -> PronkError:
    """There is no model of this name."""
    return PronkError(Code.NOT_FOUND, f"model '{name.display}' not found")


def _missing(name: ModelName, layer: Layer) -> PronkError:
    return PronkError(
        Code.UNAVAILABLE,
        f"a part of model '{name.display}' is not in the library any more, sha256:{layer.digest}; "
        "try again",
        retry_after=1.0,
    )


def _layers_of(name: ModelName, manifest: bytes) -> tuple[Layer, ...]:
    try:
        if len(manifest) > MAX_MANIFEST:
            raise Damaged(f"its manifest is larger than {MAX_MANIFEST // 1024} KiB")
        layers, config = manifest_parts(manifest)
    except Damaged as error:
        raise PronkError(
            Code.INVALID_REQUEST, f"model '{name.display}' cannot be written: {error}"
        ) from None
    return tuple(dict.fromkeys(layers if config is None else (*layers, config)))


def _gigabytes(size: int) -> str:
    if size < 10**9:
        return f"{size / 10**6:.1f} MB"
    return f"{size / 10**9:.1f} GB"
