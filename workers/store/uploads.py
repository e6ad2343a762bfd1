"""Files that frontends pass on from their clients, on their way into the library.

A file is written and hashed as it comes, and staged when it is what its digest says. Its sender may
be ahead of the disk by a window, which bounds what is kept in memory however fast it sends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from ...protocol.channels import Router
from ...protocol.errors import Code, PronkError
from ...protocol.logs import RateLimitedLog
from ...protocol.messages.changes import StopCall
from ...protocol.messages.failure import Failure
from ...protocol.messages.library import CallFailed
from ...protocol.messages.uploads import (
    MAX_PART,
    BeginUpload,
    BlobFound,
    EndUpload,
    FindBlob,
    UploadCredit,
    Uploaded,
    UploadPart,
)
from .changes import CLOSING_SECONDS
from .incoming import IncomingFile, Upload
from .outcomes import Caller, Outcomes
from .writing import Writer

_log = logging.getLogger(__name__)

WINDOW = 4 * MAX_PART
"""Bytes that a sender may be ahead of the disk."""
THREADS = 2
"""Files that are written, and blobs that are looked for, at the same time."""
MAX_UPLOADS = 32
MAX_QUESTIONS = 128
"""`FindBlob` at a time."""
IDLE_SECONDS = 120.0
"""How long an upload of which nothing comes is kept."""

_SIGN_SECONDS = 2.0
"""How often a sender hears that its file is being worked on."""
T = TypeVar("T")


class Uploads:
    """Takes files from any number of peers. Lives on one event loop."""

    def __init__(self, endpoint: str, writer: Writer) -> None:
        self._writer = writer
        self._uploads: dict[Caller, Upload] = {}
        self._asked: set[Caller] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._outcomes = Outcomes()
        self._noted = RateLimitedLog(_log)
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._finding = ThreadPoolExecutor(THREADS, "store-find")
        """Apart, because a blob that nobody has vouched for is read as a whole."""
        self._writing = ThreadPoolExecutor(THREADS, "store-upload")
        self._router = Router(endpoint, self._received, self._forget, max_body=MAX_PART)

    def close(self) -> None:
        """Gives up what is coming. What is whole and verified stays."""
        self._closed = True
        self._router.close()
        self._finding.shutdown(wait=False, cancel_futures=True)
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Waits until files that were given up are closed and removed, but not for long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSING_SECONDS)
        self._writing.shutdown(wait=False, cancel_futures=True)

    def _post(self, peer: str, message: Any) -> None:
        if not self._closed:
            self._router.send(peer, message)

    def _forget(self, peer: str) -> None:
        for caller in [caller for caller in self._uploads if caller[0] == peer]:
            self._stop(caller)

    def _received(self, peer: str, message: Any, body: bytes) -> None:
        match message:
            case FindBlob():
                self._find(peer, message)
            case BeginUpload():
                self._begin(peer, message)
            case UploadPart() | EndUpload():
                self._take(peer, message, body)
            case StopCall():
                self._stop((peer, message.call))
            case _:
                self._noted.warning("not of an upload", f"{type(message).__name__} from {peer}")

    def _find(self, peer: str, question: FindBlob) -> None:
        caller = peer, question.call
        if caller in self._asked:
            return
        if len(self._asked) >= MAX_QUESTIONS:
            self._fail(caller, _busy())
            return
        self._asked.add(caller)
        task = self._start(self._answer(caller, question))
        task.add_done_callback(lambda task: self._asked.discard(caller))

    async def _answer(self, caller: Caller, question: FindBlob) -> None:
        def size() -> int | None:
            path = self._writer.find(question.digest)
            with suppress(FileNotFoundError):
                return path.stat().st_size if path else None
            return None

        try:
            found = await self._loop.run_in_executor(self._finding, size)
            if found is None:
                raise PronkError(
                    Code.NOT_FOUND, f"blob 'sha256:{question.digest}' is not in the library"
                )
        except PronkError as error:
            self._fail(caller, error)
        except Exception:
            self._fail(caller, self._fault())
        else:
            self._post(caller[0], BlobFound(question.call, found))

    def _begin(self, peer: str, order: BeginUpload) -> None:
        caller = peer, order.call
        if upload := self._uploads.get(caller):
            upload.news.set()  # its sender is there
            self._say_credit(upload)
        elif outcome := self._outcomes.get(caller):
            self._post(peer, outcome)
        elif (
            len(self._uploads) >= MAX_UPLOADS
            # Those that were given up may still have a file to close.
            or len(self._tasks) >= MAX_UPLOADS + MAX_QUESTIONS
        ):
            self._fail(caller, _busy())
        else:
            upload = self._uploads[caller] = Upload(caller, order)
            upload.task = self._start(self._carry_out(upload))
            upload.task.add_done_callback(lambda task: self._ended(upload))

    def _take(self, peer: str, message: UploadPart | EndUpload, body: bytes) -> None:
        caller = peer, message.call
        asks = isinstance(message, EndUpload) or not body
        upload = self._uploads.get(caller)
        if upload is None:
            outcome = self._outcomes.get(caller)
            if outcome is None:
                self._fail(caller, _restarted())
            elif asks:  # what else was on its way when the upload ended needs no answer
                self._post(peer, outcome)
            return
        try:
            if isinstance(message, UploadPart):
                upload.take(message.offset, body)
            elif not upload.ended:
                upload.end(message.size)
        except PronkError as error:
            self._end(caller, CallFailed(message.call, Failure.of(error)))
        else:
            if asks:
                self._say_credit(upload)

    def _ended(self, upload: Upload) -> None:
        # The call may have begun another one since this one was told to stop.
        if self._uploads.get(upload.caller) is upload:
            del self._uploads[upload.caller]

    def _stop(self, caller: Caller) -> None:
        upload = self._uploads.pop(caller, None)
        if upload and upload.task:
            upload.task.cancel()

    def _end(self, caller: Caller, outcome: Any) -> None:
        self._outcomes.keep(caller, outcome)
        self._post(caller[0], outcome)
        self._stop(caller)

    async def _carry_out(self, upload: Upload) -> None:
        try:
            await self._take_in(upload)
            outcome = Uploaded(upload.order.call)
        except PronkError as error:
            outcome = CallFailed(upload.order.call, Failure.of(error))
        except Exception:
            outcome = CallFailed(upload.order.call, Failure.of(self._fault()))
        self._outcomes.keep(upload.caller, outcome)
        self._post(upload.caller[0], outcome)

    async def _take_in(self, upload: Upload) -> None:
        order = upload.order
        if await self._work(upload, self._finding, lambda: self._writer.find(order.digest)):
            return
        file = IncomingFile(self._writer, order.size)
        try:
            await self._work(upload, self._writing, file.open)
            written = 0
            while not (upload.ended and not upload.waiting):
                upload.news.clear()
                self._grant(upload, written + WINDOW)
                if not upload.waiting and not upload.ended:
                    await self._news(upload)
                if parts := upload.waiting:
                    upload.waiting = []
                    await self._work(upload, self._writing, partial(file.write, parts))
                    written += sum(map(len, parts))
            await self._work(upload, self._writing, partial(file.adopt, order.digest))
        finally:
            await asyncio.shield(self._loop.run_in_executor(self._writing, file.remove))

    def _grant(self, upload: Upload, until: int) -> None:
        if upload.order.size is not None:
            until = min(until, upload.order.size)
        if until > upload.credit:
            upload.credit = until
            self._post(upload.caller[0], UploadCredit(upload.order.call, until))

    def _say_credit(self, upload: Upload) -> None:
        """Says again what was granted: a sign that the file is being worked on."""
        self._post(upload.caller[0], UploadCredit(upload.order.call, max(0, upload.credit)))

    async def _news(self, upload: Upload) -> None:
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                await upload.news.wait()
        except TimeoutError:
            raise PronkError(
                Code.DEADLINE_EXCEEDED, f"nothing of the file came for {IDLE_SECONDS:.0f} seconds"
            ) from None

    async def _work(self, upload: Upload, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        """What `work` returns, from a thread. The sender hears meanwhile that it is being done."""
        task = asyncio.ensure_future(self._loop.run_in_executor(threads, work))
        try:
            while True:
                done, _ = await asyncio.wait({task}, timeout=_SIGN_SECONDS)
                if done:
                    return task.result()
                self._post(upload.caller[0], UploadCredit(upload.order.call, max(0, upload.credit)))
        except asyncio.CancelledError:
            # Nothing else may touch the file before the thread has let go of it.
            await asyncio.wait({task})
            raise

    def _fail(self, caller: Caller, error: PronkError) -> None:
        peer, call = caller
        self._post(peer, CallFailed(call, Failure.of(error)))

    def _fault(self) -> PronkError:
        self._noted.exception("an upload failed")
        return PronkError(
            Code.INTERNAL, "the model library could not take the file; see the server's log"
        )

    def _start(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _restarted() -> PronkError:
    return PronkError(
        Code.UNAVAILABLE,
        "the model library was restarted while the file came; send it again",
        retry_after=1.0,
    )


def _busy() -> PronkError:
    return PronkError(
        Code.UNAVAILABLE,
        "as many files are coming into the model library as there may at a time; try again later",
        retry_after=5.0,
    )
