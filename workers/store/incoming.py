"""One file that comes from a frontend: what was said about it, and what has come of it."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from ...protocol.errors import Code, PronkError
from ...protocol.messages.uploads import MAX_PART, BeginUpload
from .disk import clear_errors, create
from .outcomes import Caller
from .writing import Writer

_CHECK_BYTES = 64 * 1024 * 1024
"""How often there is a look at the room on the disk while a file of unknown size comes."""


class Upload:
    """One file that is coming: what was said about it, and what has come of it."""

    def __init__(self, caller: Caller, order: BeginUpload) -> None:
        self.caller = caller
        self.order = order
        self.task: asyncio.Task[None] | None = None
        self.credit = -1
        """Up to which byte its sender may send; −1 before it may send anything."""
        self.received = 0
        self.ended = False
        """Whether the sender has said that this was all."""
        self.news = asyncio.Event()
        self.waiting: list[bytes] = []

    def take(self, offset: int, content: bytes) -> None:
        """Takes the next part; one without bytes says that its sender is there. Raises `PronkError`
        where it is not the next, or too much.
        """
        self.news.set()
        if not content:
            return
        if self.ended or offset != self.received or len(content) > MAX_PART:
            raise _refusal("its parts did not come in order")
        if offset + len(content) > self.credit:
            # The credit never goes beyond the size that was announced.
            raise _refusal("more of it came than was asked for, or than was announced")
        self.received += len(content)
        self.waiting.append(content)

    def end(self, size: int) -> None:
        """The sender has sent all of it. Raises `PronkError` where it has not."""
        announced = self.order.size
        if size != self.received or (announced is not None and size != announced):
            raise _refusal(
                f"{self.received} bytes of it came, and not "
                f"{size if announced is None else announced}"
            )
        self.ended = True
        self.news.set()


class IncomingFile:
    """What has come of a file, on the disk. Blocking."""

    def __init__(self, writer: Writer, announced: int | None) -> None:
        self._writer = writer
        self._announced = announced
        self._path: Path | None = None
        self._file: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self._size = 0

    def open(self) -> None:
        """Makes room for it. Raises `PronkError`."""
        self._writer.require_room(self._announced or MAX_PART)
        self._path = self._writer.incoming()
        with clear_errors():
            self._file = create(self._path)

    def write(self, parts: list[bytes]) -> None:
        """Appends parts. Raises `PronkError`."""
        for part in parts:
            before, self._size = self._size, self._size + len(part)
            if self._announced is None and before // _CHECK_BYTES != self._size // _CHECK_BYTES:
                self._writer.require_room(_CHECK_BYTES)
            assert self._file
            with clear_errors():
                self._file.write(part)
            self._hash.update(part)

    def adopt(self, digest: str) -> None:
        """Stages the file if it has this digest. Raises `PronkError` (400) if not."""
        assert self._file
        assert self._path
        with clear_errors():
            self._file.close()
        if self._hash.hexdigest() != digest:
            raise PronkError(
                Code.INVALID_REQUEST,
                f"the file is not what its digest says: it should be sha256:{digest}, and is "
                f"sha256:{self._hash.hexdigest()}",
            )
        self._writer.adopt(self._path, digest)

    def remove(self) -> None:
        """Removes what has come, if it was not adopted."""
        with suppress(OSError):
            if self._file:
                self._file.close()
        with suppress(OSError):
            if self._path:
                self._path.unlink(missing_ok=True)


def _refusal(problem: str) -> PronkError:
    return PronkError(
        Code.INVALID_REQUEST, f"the file could not be taken: {problem}; send it again"
    )
