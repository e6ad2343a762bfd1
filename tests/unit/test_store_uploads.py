from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO

import pytest
import zmq

from pronk.protocol.errors import Code
from pronk.protocol.messages.changes import StopCall
from pronk.protocol.messages.library import CallFailed, ListModels
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
from pronk.protocol.names import parse_name
from pronk.protocol.state import StateDirectory
from pronk.workers.store import incoming
from pronk.workers.store import uploads as module
from pronk.workers.store.layout import Library
from pronk.workers.store.uploads import WINDOW, Uploads
from pronk.workers.store.writing import Writer
from support.calls import PATIENCE, Frontend, call, until
from support.store import Ollama
from support.writing import adopted, digest_of, manifest, written

CONTENT = os.urandom(3 * WINDOW + 12345)
ENDS = (Uploaded, CallFailed)


@pytest.fixture
def writer(ollama: Ollama) -> Writer:
    return Writer(ollama.root)


@pytest.fixture
async def make_uploads(
    state: StateDirectory, writer: Writer
) -> AsyncIterator[Callable[[], Uploads]]:
    made: list[Uploads] = []

    def make() -> Uploads:
        made.append(Uploads(state.uploads, writer))
        return made[-1]

    yield make
    for uploads in made:
        uploads.close()
        await uploads.wait_closed()


@pytest.fixture
async def uploads(make_uploads: Callable[[], Uploads]) -> Uploads:
    return make_uploads()


@pytest.fixture
async def frontends(state: StateDirectory, uploads: Uploads) -> AsyncIterator[list[Frontend]]:
    frontends = [Frontend(state.uploads) for _ in range(2)]
    yield frontends
    for frontend in frontends:
        frontend.close()


@pytest.fixture
def frontend(frontends: list[Frontend]) -> Frontend:
    return frontends[0]


def credit(frontend: Frontend, call: str) -> int:
    return max((message.until for message in frontend.of(call, UploadCredit)), default=-1)


async def sent(
    frontend: Frontend, content: bytes, digest: str, size: int | None = None
) -> Uploaded | CallFailed:
    """Sends a file as a frontend does; returns how it ended."""
    order = BeginUpload(call(), digest, size)
    frontend.send(order)
    offset = 0
    while offset < len(content):
        await until(
            lambda sent=offset: (
                credit(frontend, order.call) > sent or frontend.of(order.call, *ENDS)
            )
        )
        if ends := frontend.of(order.call, *ENDS):
            return ends[0]
        part = content[offset : min(offset + MAX_PART, credit(frontend, order.call))]
        frontend.send(UploadPart(order.call, offset), part)
        offset += len(part)
    frontend.send(EndUpload(order.call, len(content)))
    return await frontend.hear(order.call, *ENDS)


async def begun(frontend: Frontend, digest: str = "0" * 64, size: int | None = None) -> str:
    order = BeginUpload(call(), digest, size)
    frontend.send(order)
    await until(lambda: credit(frontend, order.call) > 0)
    return order.call


def coming(ollama: Ollama) -> list[Path]:
    return list((ollama.root / ".pronk" / "uploads").iterdir())


def failure(end: Uploaded | CallFailed) -> tuple[Code, str]:
    assert isinstance(end, CallFailed)
    return end.failure.code, end.failure.message


@pytest.mark.parametrize("size", [None, len(CONTENT)])
async def test_a_file_comes_within_its_credit_and_is_used_without_a_copy(
    frontend: Frontend, writer: Writer, ollama: Ollama, size: int | None
) -> None:
    digest = digest_of(CONTENT)
    missing = await frontend.ask(FindBlob(call(), digest), CallFailed)
    assert missing.failure.code is Code.NOT_FOUND
    end = await sent(frontend, CONTENT, digest, size)
    assert isinstance(end, Uploaded)
    granted = [message.until for message in frontend.of(end.call, UploadCredit)]
    assert granted[0] == WINDOW
    assert granted == sorted(granted)
    assert all(size is None or until <= size for until in granted)
    found = await frontend.ask(FindBlob(call(), digest), BlobFound)
    assert found.size == len(CONTENT)
    path = writer.find(digest)
    assert path
    assert path.read_bytes() == CONTENT
    assert coming(ollama) == []
    inode = path.stat().st_ino
    writer.keep(b"{}")
    writer.commit(parse_name("mine"), manifest(CONTENT))
    assert ollama.path_of(f"sha256:{digest}").stat().st_ino == inode
    assert Library(ollama.root).load(parse_name("mine")).size == len(CONTENT) + 2


async def test_an_empty_file_is_a_file(frontend: Frontend, writer: Writer) -> None:
    for size in (None, 0):
        order = BeginUpload(call(), digest_of(b""), size)
        await frontend.ask(order, UploadCredit, Uploaded)
        frontend.send(EndUpload(order.call, 0))
        assert await frontend.hear(order.call, *ENDS) == Uploaded(order.call)
    assert writer.find(digest_of(b""))


async def test_a_file_that_is_not_what_its_digest_says_is_refused(
    frontend: Frontend, writer: Writer, ollama: Ollama
) -> None:
    code, message = failure(await sent(frontend, b"something else", digest_of(CONTENT)))
    assert code is Code.INVALID_REQUEST
    assert digest_of(CONTENT) in message
    assert digest_of(b"something else") in message
    await until(lambda: not coming(ollama))
    assert writer.find(digest_of(CONTENT)) is None
    assert writer.find(digest_of(b"something else")) is None
    assert isinstance(await sent(frontend, CONTENT, digest_of(CONTENT)), Uploaded)


@pytest.mark.parametrize("where", ["blobs", "staged", "ollama"])
async def test_a_file_that_is_there_need_not_come(
    frontend: Frontend, writer: Writer, ollama: Ollama, where: str, weights: bytes
) -> None:
    match where:
        case "blobs":
            written(writer, "phi", weights)
        case "staged":
            adopted(writer, weights)
        case _:
            ollama.blob(weights)
    order = BeginUpload(call(), digest_of(weights), len(weights))
    assert await frontend.ask(order, *ENDS, UploadCredit) == Uploaded(order.call)
    # Whoever asks once more hears it once more.
    frontend.send(order)
    await until(lambda: len(frontend.of(order.call, Uploaded)) == 2)


async def test_parts_of_what_nobody_knows_are_to_be_sent_again(
    frontend: Frontend,
    make_uploads: Callable[[], Uploads],
    uploads: Uploads,
    ollama: Ollama,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CLOSING_SECONDS", PATIENCE)
    lost = await begun(frontend)
    frontend.send(UploadPart(lost, 0), b"x")
    uploads.close()
    await uploads.wait_closed()
    assert coming(ollama) == []
    make_uploads()
    for message in (UploadPart(lost, 1), EndUpload(call(), 1)):
        body = b"x" if isinstance(message, UploadPart) else b""
        failed = await frontend.insist(message, body, CallFailed)
        assert failed.failure.code is Code.UNAVAILABLE
        assert "send it again" in failed.failure.message


async def test_a_sender_can_ask_how_its_file_is_doing(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = await begun(frontend, digest_of(b"good"))
    for message in (UploadPart(own, 0), BeginUpload(own, digest_of(b"good"))):
        heard = len(frontend.heard)
        frontend.send(message)
        await until(lambda heard=heard: len(frontend.heard) > heard)
        assert frontend.heard[-1] == UploadCredit(own, WINDOW)
    frontend.send(UploadPart(own, 0), b"good")
    for _ in range(3):
        frontend.send(EndUpload(own, 4))
    await frontend.hear(own, Uploaded)
    for message in (EndUpload(own, 4), UploadPart(own, 4)):
        heard = len(frontend.heard)
        frontend.send(message)
        await until(lambda heard=heard: len(frontend.heard) > heard)
        assert frontend.heard[-1] == Uploaded(own)
    assert frontend.of(own, CallFailed) == []


@pytest.mark.parametrize(
    ("offset", "content", "reason"),
    [
        (1, b"x", "in order"),
        (2**62, b"x", "in order"),
        (0, bytes(11), "than was announced"),
    ],
)
async def test_a_part_that_was_not_asked_for_ends_its_upload(
    frontend: Frontend, ollama: Ollama, offset: int, content: bytes, reason: str
) -> None:
    bad = await begun(frontend, size=10)
    frontend.send(UploadPart(bad, offset), content)
    code, message = failure(await frontend.hear(bad, *ENDS))
    assert code is Code.INVALID_REQUEST
    assert reason in message
    # What else was on its way gets no second answer.
    frontend.send(UploadPart(bad, 0), b"x")
    assert isinstance(await sent(frontend, b"good", digest_of(b"good")), Uploaded)
    assert len(frontend.of(bad, *ENDS)) == 1


async def test_more_than_the_credit_is_refused_and_not_kept(
    frontend: Frontend, ollama: Ollama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender that does not wait, and a disk that does not go on."""
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()
    real = incoming.IncomingFile.write

    def slow(self: incoming.IncomingFile, parts: list[bytes]) -> None:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
        real(self, parts)

    monkeypatch.setattr(incoming.IncomingFile, "write", slow)
    hasty = await begun(frontend)
    for count in range(WINDOW // MAX_PART + 1):
        frontend.send(UploadPart(hasty, count * MAX_PART), bytes(MAX_PART))
    code, message = failure(await frontend.hear(hasty, *ENDS))
    assert code is Code.INVALID_REQUEST
    assert "more of it came than was asked for" in message
    gate.set()
    await until(lambda: not coming(ollama))


async def test_a_file_that_ends_too_soon_is_refused(frontend: Frontend, ollama: Ollama) -> None:
    for size, announced, said in ((None, 3, "2 bytes"), (5, 2, "not 5")):
        order = BeginUpload(call(), digest_of(b"xx"), size)
        await frontend.ask(order, UploadCredit)
        frontend.send(UploadPart(order.call, 0), b"xx")
        frontend.send(EndUpload(order.call, announced))
        code, message = failure(await frontend.hear(order.call, *ENDS))
        assert code is Code.INVALID_REQUEST
        assert said in message
    await until(lambda: not coming(ollama))


async def test_a_file_whose_sender_is_gone_goes(frontend: Frontend, ollama: Ollama) -> None:
    gone = await begun(frontend)
    frontend.send(UploadPart(gone, 0), b"x")
    assert len(coming(ollama)) == 1
    frontend.send(StopCall(gone))
    await until(lambda: not coming(ollama))
    assert frontend.of(gone, *ENDS) == []


async def test_a_file_of_which_nothing_comes_goes(
    frontend: Frontend, ollama: Ollama, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.05)
    code, _ = failure(await frontend.hear(await begun(frontend), *ENDS))
    assert code is Code.DEADLINE_EXCEEDED
    await until(lambda: not coming(ollama))


async def test_two_may_send_the_same_file_at_once(
    frontends: list[Frontend], writer: Writer, ollama: Ollama
) -> None:
    digest = digest_of(CONTENT)
    ends = await asyncio.gather(*(sent(frontend, CONTENT, digest) for frontend in frontends * 2))
    assert all(isinstance(end, Uploaded) for end in ends)
    assert coming(ollama) == []
    path = writer.find(digest)
    assert path
    assert path.read_bytes() == CONTENT


async def test_nobody_can_take_part_in_anothers_upload(frontends: list[Frontend]) -> None:
    own, other = frontends
    target = await begun(own, digest_of(b"good"))
    other.send(UploadPart(target, 0), b"evil")
    assert failure(await other.hear(target, *ENDS))[0] is Code.UNAVAILABLE
    other.send(StopCall(target))
    other.send(EndUpload(target, 0))
    await until(lambda: len(other.of(target, CallFailed)) == 2)
    own.send(UploadPart(target, 0), b"good")
    own.send(EndUpload(target, 4))
    assert await own.hear(target, *ENDS) == Uploaded(target)


async def test_uploads_beyond_the_bound_are_told_to_come_back(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_UPLOADS", 2)
    first = await begun(frontend)
    await begun(frontend)
    refused = await frontend.ask(BeginUpload(call(), "0" * 64), *ENDS)
    assert failure(refused)[0] is Code.UNAVAILABLE
    assert refused.failure.retry_after
    frontend.send(StopCall(first))
    await begun(frontend)


async def test_what_there_is_no_room_for_is_refused_before_it_comes(
    frontend: Frontend, ollama: Ollama
) -> None:
    end = await frontend.ask(BeginUpload(call(), "0" * 64, 2**60), *ENDS, UploadCredit)
    code, message = failure(end)
    assert code is Code.STORAGE_FULL
    assert str(ollama.root) not in message


async def test_a_disk_that_is_full_in_the_middle_is_told(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/dev/full, in the place of a file, is a disk without room."""

    def full(path: Path) -> BinaryIO:
        return os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb", buffering=0)

    monkeypatch.setattr(incoming, "create", full)
    end = await sent(frontend, CONTENT, digest_of(CONTENT))
    assert failure(end)[0] is Code.STORAGE_FULL


async def test_room_is_looked_for_while_a_file_of_unknown_size_comes(
    frontend: Frontend, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(incoming, "_CHECK_BYTES", 4 * MAX_PART)
    monkeypatch.setattr(writer, "require_room", asked.append)
    assert isinstance(await sent(frontend, CONTENT, digest_of(CONTENT)), Uploaded)
    assert asked == [MAX_PART, *[4 * MAX_PART] * 3]


async def test_what_belongs_to_no_upload_does_no_harm(
    frontend: Frontend, state: StateDirectory
) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as raw:
        raw.linger = int(PATIENCE * 1000)
        raw.connect(state.uploads)
        for frames in ([b""], [b"\xff" * 100], [b"a", b"b"], [os.urandom(MAX_PART)]):
            raw.send_multipart(frames)
    frontend.send(ListModels(call()))
    assert isinstance(await sent(frontend, b"good", digest_of(b"good")), Uploaded)
