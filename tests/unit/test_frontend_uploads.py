"""Files that clients send, on their way to a store that is played here."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pronk.frontend import bodies
from pronk.frontend import uploads as uploads_module
from pronk.protocol.channels import Router
from pronk.protocol.errors import Code
from pronk.protocol.messages.changes import StopCall
from pronk.protocol.messages.failure import Failure
from pronk.protocol.messages.library import CallFailed
from pronk.protocol.messages.uploads import (
    MAX_PART,
    BeginUpload,
    BlobFound,
    EndUpload,
    FindBlob,
    UploadCredit,
    Uploaded,
    UploadPart,
)
from pronk.protocol.state import StateDirectory
from support.played import PATIENCE, Stack, until

WINDOW = 3 * MAX_PART


class PlayedUploads:
    """Takes files as a store does, and checks that it gets no byte that it has not granted."""

    def __init__(self, state: StateDirectory) -> None:
        self.seen: list[Any] = []
        self.files: dict[str, bytearray] = {}
        self.there: dict[str, int] = {}
        """What is in the library, by digest."""
        self.most = 2**62
        """Up to which byte it grants anything."""
        self.mute: tuple[type[Any], ...] = ()
        """What it does not react to."""
        self.on_message: Callable[[Any], Any] = lambda message: None
        """What it says instead."""
        self._digests: dict[str, str] = {}
        self._router = Router(state.uploads, self._received, max_body=MAX_PART)

    def all(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.seen if isinstance(message, kind)]

    def _received(self, peer: str, message: Any, body: bytes) -> None:
        self.seen.append(message)
        if not isinstance(message, self.mute) and (answer := self._answer(message, body)):
            self._router.send(peer, self.on_message(message) or answer)

    def _answer(self, message: Any, body: bytes) -> Any:
        match message:
            case FindBlob(call, digest):
                if digest in self.there:
                    return BlobFound(call, self.there[digest])
                return CallFailed(call, Failure(Code.NOT_FOUND, "no such file"))
            case BeginUpload(call, digest) if digest in self.there:
                return Uploaded(call)
            case BeginUpload(call, digest):
                self._digests[call] = digest
                self.files.setdefault(call, bytearray())
                return self._credit(call)
            case StopCall(call):
                self.files.pop(call, None)
                return None
        if message.call not in self.files:
            return CallFailed(message.call, Failure(Code.UNAVAILABLE, "send it again", 1.0))
        file = self.files[message.call]
        match message:
            case UploadPart(call, offset):
                assert offset == len(file)
                assert offset + len(body) <= min(self.most, offset + WINDOW)
                file += body
                return self._credit(call)
            case EndUpload(call, size):
                assert size == len(file)
                if hashlib.sha256(file).hexdigest() != self._digests[call]:
                    return CallFailed(call, Failure(Code.INVALID_REQUEST, "digest mismatch"))
                return Uploaded(call)

    def _credit(self, call: str) -> UploadCredit:
        return UploadCredit(call, min(len(self.files[call]) + WINDOW, self.most))

    def close(self) -> None:
        self._router.close()


@pytest.fixture
async def store(stack: Stack) -> AsyncIterator[PlayedUploads]:
    store = PlayedUploads(stack.state)
    yield store
    store.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions are repeated at once."""
    monkeypatch.setattr(uploads_module, "REPEAT_SECONDS", 0.05)


def path_of(content: bytes) -> str:
    return f"/api/blobs/sha256:{hashlib.sha256(content).hexdigest()}"


async def send(stack: Stack, content: bytes, **arguments: Any) -> tuple[int, bytes]:
    path = arguments.pop("path", path_of(content))
    data = arguments.pop("data", content)
    async with stack.client.post(path, data=data, **arguments) as response:
        return response.status, await response.read()


async def in_chunks(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_file_arrives_whole_and_within_what_was_granted(
    stack: Stack, store: PlayedUploads, chunked: bool
) -> None:
    content = bytes(range(256)) * 40_000  # 10 MB, more than three windows
    data = in_chunks(content[:7], content[7:]) if chunked else content
    assert await send(stack, content, data=data) == (201, b"")
    (begin,) = store.all(BeginUpload)
    assert begin.size == (None if chunked else len(content))
    assert bytes(store.files[begin.call]) == content
    assert not store.all(StopCall)


async def test_a_file_of_nothing(stack: Stack, store: PlayedUploads) -> None:
    store.most = 0
    assert await send(stack, b"") == (201, b"")


async def test_a_file_that_is_there_is_not_asked_for(stack: Stack, store: PlayedUploads) -> None:
    content = b"x" * 100
    store.there[hashlib.sha256(content).hexdigest()] = 100
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    head = f"POST {path_of(content)} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
    writer.write(f"{head}Expect: 100-continue\r\n\r\n".encode())
    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    writer.close()


async def test_a_file_that_is_held_back_is_asked_for(stack: Stack, store: PlayedUploads) -> None:
    assert await send(stack, b"some bytes", expect100=True) == (201, b"")


async def test_a_file_that_is_there_is_not_taken_again(stack: Stack, store: PlayedUploads) -> None:
    content = b"x" * 100_000
    async with stack.client.head(path_of(content)) as response:
        assert response.status == 404
    store.there[hashlib.sha256(content).hexdigest()] = len(content)
    for path in (path_of(content), path_of(content).replace(":", "-", 1).upper().lower()):
        async with stack.client.head(path) as response:
            assert (response.status, await response.read()) == (200, b"")
    assert await send(stack, content) == (200, b"")
    assert not store.all(UploadPart)


@pytest.mark.parametrize(
    "digest",
    [
        "sha256:abc",
        "sha256:" + "g" * 64,
        "md5:" + "a" * 32,
        "sha256:" + "a" * 65,
        "sha256:" + "a" * 64 + "%0A",
        "..%2F..%2Fetc%2Fpasswd",
        "sha256:..%2F" + "a" * 61,
        "sha256%3A" + "%00" * 64,
        "a" * 5000,
    ],
)
async def test_what_is_no_digest_reaches_nobody(
    stack: Stack, store: PlayedUploads, digest: str
) -> None:
    status, error, _ = await stack.request("POST", f"/api/blobs/{digest}", data=b"x")
    assert status == 400
    assert "64 hexadecimal digits" in error["error"]
    async with stack.client.head(f"/api/blobs/{digest}") as response:
        assert response.status == 400
    assert store.seen == []


async def test_a_file_that_is_packed_is_refused(stack: Stack, store: PlayedUploads) -> None:
    status, text = await send(stack, b"x", headers={"Content-Encoding": "gzip"})
    assert (status, b"without Content-Encoding" in text) == (415, True)
    assert store.seen == []


async def test_bytes_that_do_not_match_are_refused(stack: Stack, store: PlayedUploads) -> None:
    status, text = await send(stack, b"one", path=path_of(b"another"))
    assert (status, text) == (400, b'{"error":"digest mismatch"}')


@pytest.mark.parametrize(
    ("code", "status"), [(Code.STORAGE_FULL, 507), (Code.INVALID_REQUEST, 400)]
)
async def test_a_refusal_reaches_a_client_that_is_still_sending(
    stack: Stack, store: PlayedUploads, code: Code, status: int
) -> None:
    store.on_message = lambda message: (
        CallFailed(message.call, Failure(code, "because"))
        if isinstance(message, UploadPart)
        else None
    )
    released = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"x" * 1000
        await released.wait()

    answered, text = await asyncio.wait_for(send(stack, b"x" * 2000, data=slowly()), PATIENCE)
    released.set()
    assert (answered, text) == (status, b'{"error":"because"}')


async def test_a_client_is_not_read_further_than_the_store_grants(
    stack: Stack, store: PlayedUploads, quick: None
) -> None:
    store.most = MAX_PART
    with socket.create_connection(("127.0.0.1", stack.port)) as client:
        client.setblocking(False)
        client.send(
            b"POST /api/blobs/sha256:%s HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: 1000000000\r\n\r\n" % (b"a" * 64)
        )
        sent, idle = 0, 0
        while idle < 20:  # nothing more goes in for a while
            try:
                sent += client.send(b"x" * 65_536)
                idle = 0
            except BlockingIOError:
                idle += 1
                await asyncio.sleep(0.02)
        granted = [MAX_PART]
        await until(lambda: [*map(len, store.files.values())] == granted, "what was granted")
        # What the kernel holds for both ends of a connection, and one chunk of ours.
        assert sent < MAX_PART + 24 * 2**20
        client.close()
        store.most = 2**62
        await until(lambda: store.all(StopCall), "the store is told that the client is gone")


@pytest.mark.parametrize("length", [b"Content-Length: 100\r\n", b"Transfer-Encoding: chunked\r\n"])
async def test_a_client_that_leaves_in_the_middle_has_its_file_forgotten(
    stack: Stack, store: PlayedUploads, length: bytes
) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(
        b"POST /api/blobs/sha256:%s HTTP/1.1\r\nHost: localhost\r\n%s\r\n" % (b"a" * 64, length)
    )
    writer.write(b"5\r\nhello\r\n")
    await until(lambda: store.all(UploadPart), "a part has arrived")
    writer.close()
    await until(lambda: store.all(StopCall), "the store is told")
    assert not store.files
    assert not store.all(EndUpload)


async def test_a_client_that_stops_sending_is_not_waited_for(
    stack: Stack, store: PlayedUploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "PATIENCE", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(
        b"POST /api/blobs/sha256:%s HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: 9\r\n\r\nhello" % (b"a" * 64)
    )
    assert b" 408 " in await reader.readline()
    await until(lambda: store.all(StopCall), "the store is told")
    writer.close()


async def test_a_store_that_is_restarted_has_the_file_sent_again(
    stack: Stack, store: PlayedUploads, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.most = MAX_PART
    content = b"x" * (2 * MAX_PART)
    sending = asyncio.create_task(send(stack, content))
    await until(lambda: sum(map(len, store.files.values())) == MAX_PART, "half of it is there")
    store.close()
    other = PlayedUploads(stack.state)
    status, text = await asyncio.wait_for(sending, PATIENCE)
    assert (status, b"send it again" in text) == (503, True)
    monkeypatch.setattr(uploads_module, "REPEAT_SECONDS", 2.0)
    assert await send(stack, content) == (201, b"")
    other.close()


@pytest.mark.parametrize("mute", [BeginUpload, UploadPart])
async def test_a_store_that_hangs_is_not_waited_for(
    stack: Stack, store: PlayedUploads, quick: None, mute: type[Any]
) -> None:
    store.mute = (mute,)
    status, text = await asyncio.wait_for(send(stack, b"x" * 2 * WINDOW), PATIENCE)
    assert (status, b"send it again" in text) == (503, True)
    await until(lambda: store.all(StopCall), "the store is told")


async def test_the_disk_may_take_its_time_at_the_end(
    stack: Stack, store: PlayedUploads, quick: None
) -> None:
    store.mute = (EndUpload,)
    sending = asyncio.create_task(send(stack, b"hello"))
    await until(lambda: len(store.all(EndUpload)) > uploads_module.UNANSWERED, "it is asked again")
    store.mute = ()
    assert await sending == (201, b"")


async def test_files_beyond_the_bound_are_told_to_come_back(
    stack: Stack, store: PlayedUploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads_module, "MAX_UPLOADS", 1)
    store.mute = (BeginUpload,)
    first = asyncio.create_task(send(stack, b"first"))
    await until(lambda: store.all(BeginUpload), "one is on its way")
    status, _, headers = await stack.request("POST", path_of(b"second"), data=b"second")
    assert (status, "Retry-After" in headers) == (503, True)
    first.cancel()
    await until(lambda: store.all(StopCall), "the first one is gone")
    store.mute = ()
    assert await send(stack, b"second") == (201, b"")


async def test_at_shutdown_an_upload_ends_with_a_word(stack: Stack, store: PlayedUploads) -> None:
    store.most = MAX_PART
    sending = asyncio.create_task(send(stack, b"x" * WINDOW))
    await until(lambda: store.all(UploadPart), "it is on its way")
    await stack.stop_frontend()
    status, text = await sending
    assert (status, b"shutting down" in text) == (503, True)
