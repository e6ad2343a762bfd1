"""Files on their way from clients to the store, on a connection of their own.

The store grants bytes, and no more than that is sent: what the disk cannot take stays with the
client, whose connection is not read any further. A store that is restarted has lost what came so
far, and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from ..protocol.errors import Code, PronkError
from ..protocol.following import UNANSWERED
from ..protocol.messages.changes import StopCall
from ..protocol.messages.library import CallFailed
from ..protocol.messages.uploads import (
    MAX_PART,
    BeginUpload,
    BlobFound,
    EndUpload,
    FindBlob,
    UploadCredit,
    Uploaded,
    UploadPart,
)
from ..protocol.questions import REPEAT_SECONDS, Questions

MAX_UPLOADS = 64
"""Files that may be on their way through one frontend at a time."""

FIND_SECONDS = 120.0
"""For the store to say whether a file is there: it may have to read all of one first that it has
not seen before."""

UNANSWERED_ENDS = 300
"""Words of the end, two seconds apart, after which the store is not waited for any longer: it
brings the rest of a file to the disk, which may be slow."""

_LOOK_SECONDS = 0.01
"""How often a connection that takes nothing just now is looked at. Within ten seconds it takes
something, or what waits for it is dropped."""


class Uploads:
    """The store's ear for files."""

    def __init__(self, endpoint: str) -> None:
        self._questions = Questions(endpoint)
        self._under_way = 0

    def end_all(self, error: PronkError) -> None:
        """Ends every upload that is under way."""
        self._questions.fail_all(error)

    def close(self) -> None:
        """Ends the connection."""
        self._questions.close()

    async def find(self, digest: str) -> int | None:
        """Bytes of the file with this digest; None where it is not there.

        Raises `PronkError` when the store does not answer.
        """
        try:
            answer = await self._questions.ask(lambda call: FindBlob(call, digest), FIND_SECONDS)
        except PronkError as error:
            if error.code is Code.NOT_FOUND:
                return None
            raise
        if not isinstance(answer, BlobFound):
            raise _odd()
        return answer.size

    async def upload(self, digest: str, size: int | None, chunks: AsyncIterator[bytes]) -> bool:
        """Returns when the file is complete, is what its digest says, and lies on the disk: True
        where it was sent for that, False where it was there already.

        `size` is what the client said beforehand. Raises `PronkError`: what the store has against
        it, or UNAVAILABLE when the file has to be sent again. Whoever cancels it has it forgotten.
        """
        if self._under_way >= MAX_UPLOADS:
            raise PronkError(
                Code.QUEUE_FULL,
                "server busy, please try again: too many files are arriving",
                retry_after=5.0,
            )
        self._under_way += 1
        upload = _Upload(self._questions, digest, size)
        try:
            return await upload.run(chunks)
        finally:
            self._under_way -= 1
            upload.close()


class _Upload:
    """One file on its way."""

    def __init__(self, questions: Questions, digest: str, size: int | None) -> None:
        self._questions = questions
        self._call = questions.begin(self._heard)
        self._begin = BeginUpload(self._call, digest, size)
        self._sent = 0
        self._credit = -1
        """Up to which byte may be sent; negative before the first word about it."""
        self._complete = False
        """Whether all of it was sent."""
        self._end: Uploaded | PronkError | None = None
        self._until_end = asyncio.timeout(None)
        self._news = asyncio.Event()

    async def run(self, chunks: AsyncIterator[bytes]) -> bool:
        """As `Uploads.upload`."""
        try:
            async with self._until_end:
                await self._pass_on(chunks)
        except TimeoutError:
            if self._end is None:
                raise
        if isinstance(self._end, PronkError):
            raise self._end
        return self._complete

    def close(self) -> None:
        """Has the store forget what is not complete."""
        self._questions.end(self._call)
        if not isinstance(self._end, Uploaded):
            self._questions.send(StopCall(self._call))

    async def _pass_on(self, chunks: AsyncIterator[bytes]) -> None:
        """Sends everything, and waits for the end, which interrupts it wherever it is."""
        self._send(self._begin)
        await self._until(lambda: self._credit >= 0, self._begin)
        async for chunk in chunks:
            rest = memoryview(chunk)
            while rest:
                while self._questions.waits:  # noqa: ASYNC110  ZeroMQ tells nobody when it has room
                    await asyncio.sleep(_LOOK_SECONDS)
                # A part without bytes finds out whether the store still knows of this file.
                here = UploadPart(self._call, self._sent)
                await self._until(lambda: self._credit > self._sent, here)
                part = bytes(rest[: min(self._credit - self._sent, MAX_PART)])
                self._send(here, part)
                self._sent += len(part)
                rest = rest[len(part) :]
        self._complete = True
        end = EndUpload(self._call, self._sent)
        self._send(end)
        await self._until(lambda: False, end, UNANSWERED_ENDS)

    async def _until(
        self, condition: Callable[[], bool], question: Any, most: int = UNANSWERED
    ) -> None:
        """Returns when the condition holds. Where nothing is heard, `question` is sent again.

        Raises UNAVAILABLE when so many in a row were not answered.
        """
        unanswered = 0
        while not condition():
            self._news.clear()
            try:
                async with asyncio.timeout(REPEAT_SECONDS):
                    await self._news.wait()
                unanswered = 0
            except TimeoutError:
                unanswered += 1
                if unanswered == most:
                    raise _interrupted() from None
                self._send(question)

    def _send(self, message: Any, body: bytes = b"") -> None:
        if not self._questions.send(message, body):
            raise _interrupted()

    def _heard(self, message: Any) -> None:
        self._news.set()
        match message:
            case UploadCredit():
                self._credit = max(self._credit, message.until)
            case Uploaded():
                self._finish(message)
            case CallFailed():
                self._finish(message.failure.error())
            case _:
                self._finish(_odd())

    def _finish(self, end: Uploaded | PronkError) -> None:
        if self._end is None:
            self._end = end
            self._until_end.reschedule(asyncio.get_running_loop().time())


def _interrupted() -> PronkError:
    return PronkError(
        Code.UNAVAILABLE,
        "the model library stopped taking the file; send it again in a moment",
        retry_after=5.0,
    )


def _odd() -> PronkError:
    return PronkError(Code.INTERNAL, "the model library gave an answer of another kind")
