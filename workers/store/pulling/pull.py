"""The whole pull of a model: its manifest, the blobs that are not there, at the end its name."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ....protocol.errors import Code, PronkError
from ....protocol.names import ModelName
from ..disk import clear_errors
from ..inspecting import inspect_pulled
from ..registry.client import Registry, Repository
from ..registry.manifests import Descriptor, parse_manifest
from ..report import REMOVED, Report
from ..writing import Replaced, Writer
from .download import Download
from .partial import Partial, Shortened
from .patience import Terms
from .verdicts import Verdicts

_log = logging.getLogger(__name__)

T = TypeVar("T")

_THREADS = 8
"""Threads that write and digest what is pulled, for all pulls together."""


class _Refused(Exception):
    """A model is none: what was fetched of it is to go."""

    def __init__(self, error: PronkError, fetched: list[str]) -> None:
        super().__init__(error.message)
        self.error = error
        self.fetched = fetched


class Puller:
    """Pulls models into one library, any number at a time. One per store process."""

    def __init__(
        self,
        writer: Writer,
        registry: Registry,
        *,
        connections: int,
        terms: Terms | None = None,
    ) -> None:
        self._writer = writer
        self._registry = registry
        self._connections = connections
        self._terms = terms or Terms()
        self._threads = ThreadPoolExecutor(_THREADS, "pull")
        self._verdicts = Verdicts()
        self._turns: dict[str, _Turn] = {}
        """Blobs that are fetched now. All of them together have about as many connections as one
        alone, so that many pulls take no more memory than one, and none waits for another.
        """

    def close(self) -> None:
        """For when no pull runs any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def pull(self, name: ModelName, insecure: bool, report: Report) -> str | None:
        """Has the library hold what the registry calls by this name. Returns the digest of the
        model that had the name before, if no other name stands for it.

        That one stays until the new one is whole. Raises `PronkError`; that, and a cancellation,
        leave what has arrived for the next pull.
        """
        report("pulling manifest")
        repository = self._registry.repository(name, insecure=insecure)
        content = await repository.manifest()
        # Small ones first: what is left to be digested behind the last byte is that of the largest
        # one, at the place where clients are told so.
        blobs = sorted(parse_manifest(content).blobs, key=lambda blob: blob.size)
        self._verdicts.look_up(name, content)
        try:
            replaced = await self._bring(repository, name, content, blobs, report)
        except _Refused as refused:
            # Nobody holds them any more, unless it is for another model.
            for digest in refused.fetched:
                await self._to_the_end(self._writer.discard, digest)
            raise refused.error from None
        if replaced.removed:
            report(REMOVED)
        report("success")
        return replaced.unnamed

    async def _bring(
        self,
        repository: Repository,
        name: ModelName,
        content: bytes,
        blobs: list[Descriptor],
        report: Report,
    ) -> Replaced:
        """Fetches what is missing of these blobs, and writes the manifest."""
        with self._writer.hold() as hold:
            for blob in blobs:
                hold.add(blob.digest)
            missing = [blob for blob in blobs if not await self._is_there(blob, report)]
            await self._require_room(missing)
            for blob in missing:
                await self._get(repository, blob, report)
            report("verifying sha256 digest")
            await self._inspect(name, content, missing)
            report("writing manifest")
            return await self._to_the_end(self._writer.replace, name, content)

    async def _is_there(self, blob: Descriptor, report: Report) -> bool:
        path = await self._in_thread(self._writer.find, blob.digest)
        if path is None or not await self._in_thread(_has_size, path, blob.size):
            return False
        _teller(blob, report)(blob.size)
        return True

    async def _inspect(self, name: ModelName, manifest: bytes, fetched: list[Descriptor]) -> None:
        """Raises `_Refused` where a file of the model is not what it says that it is; for a while
        the model is not fetched again.
        """
        try:
            await inspect_pulled(name, manifest, self._writer)
        except PronkError as error:
            if error.code is not Code.REGISTRY_FAILED:
                raise
            self._verdicts.keep(name, manifest, error.message)
            raise _Refused(error, [blob.digest for blob in fetched]) from None

    async def _require_room(self, blobs: list[Descriptor]) -> None:
        """Raises `PronkError` where the disk has no room for what these blobs lack."""
        if blobs:
            await self._in_thread(self._check_room, blobs)

    def _check_room(self, blobs: list[Descriptor]) -> None:
        needed = sum(
            blob.size - min(blob.size, _allocated(self._writer.partial(blob.digest)))
            for blob in blobs
        )
        self._writer.require_room(needed)

    async def _get(self, repository: Repository, blob: Descriptor, report: Report) -> None:
        """Fetches a blob that nobody else is fetching, or waits for whoever is."""
        async with self._turn(blob.digest, _teller(blob, report)) as turn:
            if await self._is_there(blob, report):
                return
            path = await self._in_thread(self._writer.partial, blob.digest)
            partial = Partial(path, blob.digest, blob.size)
            try:
                with clear_errors():
                    await self._in_thread(partial.open)
                    await self._fetch(repository, partial, turn.tell)
                await self._to_the_end(self._writer.adopt, path, blob.digest)
            finally:
                with clear_errors():
                    await self._to_the_end(partial.close)

    async def _fetch(
        self, repository: Repository, partial: Partial, tell: Callable[[int], None]
    ) -> None:
        """Returns when all of the blob is in its file, verified."""
        for connections in (self._connections, 1):
            download = Download(
                repository,
                partial,
                connections=connections,
                terms=self._terms,
                threads=self._threads,
                tell=tell,
                require_room=self._writer.require_room,
                share=lambda: max(1, self._connections // len(self._turns)),
            )
            with contextlib.suppress(Shortened):
                if await download.run():
                    return
            # Which part is wrong cannot be told, so all of it is fetched again, and in one stream:
            # parts may be what the registry, or a cache before it, gets wrong.
            _log.warning("what was sent as sha256:%s is something else", partial.digest)
            await self._to_the_end(partial.start_over)
        raise PronkError(
            Code.REGISTRY_FAILED,
            f"what the registry sends as sha256:{partial.digest} is something else, twice; it was "
            "thrown away: tell whoever runs the registry",
        )

    @contextlib.asynccontextmanager
    async def _turn(self, digest: str, tell: Callable[[int], None]) -> AsyncIterator[_Turn]:
        """One at a time, for each digest; those who wait hear what the one who fetches does."""
        turn = self._turns.setdefault(digest, _Turn())
        key = object()
        turn.listeners[key] = tell
        try:
            async with turn.lock:
                yield turn
        finally:
            del turn.listeners[key]
            if not turn.listeners:
                del self._turns[digest]

    async def _in_thread(self, function: Callable[..., T], *given: object) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *given)

    async def _to_the_end(self, function: Callable[..., T], *given: object) -> T:
        """In a thread, too; a cancellation, and each one behind it, waits until it is done: others
        rely on that, such as whoever opens the same file next.
        """
        task = asyncio.ensure_future(self._in_thread(function, *given))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            while not task.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([task])
            raise


@dataclass(slots=True)
class _Turn:
    """A blob that somebody fetches, and that others may wait for."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    listeners: dict[object, Callable[[int], None]] = field(default_factory=dict)

    def tell(self, completed: int) -> None:
        for listener in list(self.listeners.values()):
            listener(completed)


def _teller(blob: Descriptor, report: Report) -> Callable[[int], None]:
    """Reports how many bytes of a blob are there, in the words that Ollama's clients expect."""
    status, digest = f"pulling {blob.digest[:12]}", f"sha256:{blob.digest}"

    def tell(completed: int) -> None:
        report(status, digest, blob.size, completed)

    return tell


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _allocated(path: Path) -> int:
    """Bytes on the disk that an unfinished file has already."""
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0
