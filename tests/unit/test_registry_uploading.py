"""Uploads to registries that break off, forget, lie about where the bytes go, or refuse them."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from pronk.protocol.errors import Code, PronkError
from pronk.workers.store.registry import uploading
from pronk.workers.store.registry.failures import ConnectionBroken, RegistryBusy
from support.small_server import QUICK, SmallServer, repository, small_server

CHUNK = 100_000
BLOB = bytes(range(256)) * 1000
DIGEST = hashlib.sha256(BLOB).hexdigest()


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploading, "CHUNK", CHUNK)
    monkeypatch.setattr(uploading, "SMALL", 10_000)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "blob"
    path.write_bytes(BLOB)
    return path


class Uploads:
    """A registry that takes blobs, and fails where a test tells it to."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.here = bytearray()
        self.session = 0
        self.faults: list[str] = []
        """For each PATCH: `` for none, `cut` in the middle, `lost` with all that is here, or a
        status."""
        self.elsewhere = ""
        """What places begin with."""
        self.says: str | None = None
        """What each answer says is here, whatever is."""
        self.resumes = True
        """Whether an upload goes on that broke off within a chunk; distribution's do not."""
        self.mounted: list[str] = []
        self.mount_status = 202
        self.finish_faults: list[str] = []

    def place(self) -> dict[str, str]:
        has = self.says or f"0-{max(0, len(self.here) - 1)}"
        state = f"{self.session}%3D%3D{len(self.here)}"  # an encoded `=`, as real ones have
        location = f"{self.elsewhere}/v2/library/tiny/blobs/uploads/{self.session}?_state={state}"
        return {"Location": location, "Range": has, "Docker-Upload-UUID": str(self.session)}

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        match request.method, request.path.split("/")[4:]:
            case "HEAD", ["blobs", digest]:
                content = self.blobs.get(digest)
                size = {"Content-Length": str(len(content))} if content is not None else {}
                return web.Response(status=404 if content is None else 200, headers=size)
            case "POST", ["blobs", "uploads", ""]:
                if source := request.query.get("from"):
                    self.mounted.append(source)
                    if self.mount_status != 202:
                        self.blobs[request.query["mount"]] = BLOB
                        return web.Response(status=self.mount_status)
                self.session += 1
                self.here.clear()
                return web.Response(status=202, headers=self.place())
            case method, ["blobs", "uploads", session]:
                state = request.query["_state"]
                if int(session) != self.session:
                    return web.Response(status=404)
                if state != f"{session}=={len(self.here)}" and (
                    method != "GET" or not self.resumes
                ):
                    return web.Response(status=400)
                return await self._uploads(method, request)
        return web.Response()

    async def _uploads(self, method: str, request: web.Request) -> web.StreamResponse:
        if method == "GET":
            return web.Response(status=204, headers=self.place())
        if method == "PATCH":
            return await self._patch(request)
        fault = self.finish_faults.pop(0) if self.finish_faults else ""
        whole = bytes(self.here) + await request.read()
        digest = f"sha256:{hashlib.sha256(whole).hexdigest()}"
        if fault == "wrong":
            return web.Response(status=201, headers={"Docker-Content-Digest": "sha256:0"})
        if digest != request.query["digest"]:
            error = {"code": "DIGEST_INVALID", "message": "provided digest did not match"}
            return web.json_response({"errors": [error]}, status=400)
        self.blobs[digest] = whole
        self.session += 1
        if fault == "cut":
            assert request.transport
            request.transport.abort()
        return web.Response(status=201, headers={"Docker-Content-Digest": digest})

    async def _patch(self, request: web.Request) -> web.StreamResponse:
        fault = self.faults.pop(0) if self.faults else ""
        start, end = map(int, request.headers["Content-Range"].split("-"))
        assert start == len(self.here)
        assert end - start + 1 == request.content_length
        if fault == "cut":
            self.here += await request.content.readexactly(50_000)
            assert request.transport
            request.transport.abort()
        elif fault == "lost":
            self.session += 1
            self.here.clear()
            return web.Response(status=404)
        elif fault:
            return web.Response(status=int(fault))
        else:
            self.here += await request.read()
        return web.Response(status=202, headers=self.place())


class Forgetful(Uploads):
    """Takes whatever comes, and forgets it."""

    async def _patch(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response(status=202, headers=self.place())


@asynccontextmanager
async def taking(uploads: Uploads) -> AsyncIterator[SmallServer]:
    async with small_server(uploads) as server:  # type: ignore[arg-type]
        yield server


async def upload(server: SmallServer, file: Path, source: str | None = None) -> list[int]:
    told: list[int] = []
    async with repository(server.host) as repo:
        await repo.upload_blob(DIGEST, file, told.append, source)
    return told


async def refused(server: SmallServer, file: Path) -> PronkError:
    with pytest.raises(PronkError) as caught:
        await upload(server, file)
    return caught.value


def kinds(server: SmallServer) -> str:
    return " ".join(asked.method for asked in server.asked if asked.path != "/v2/")


async def test_a_large_blob_goes_in_chunks(file: Path) -> None:
    uploads = Uploads()
    async with taking(uploads) as server:
        told = await upload(server, file)
        ranges = [a.headers["Content-Range"] for a in server.asked if a.method == "PATCH"]
    assert uploads.blobs == {f"sha256:{DIGEST}": BLOB}
    assert ranges == ["0-99999", "100000-199999", "200000-255999"]
    assert told == sorted(told)
    assert told[-1] == len(BLOB)


@pytest.mark.parametrize("content", [b"", b"{}"])
async def test_a_small_blob_goes_in_one_piece(tmp_path: Path, content: bytes) -> None:
    file, digest = tmp_path / "small", hashlib.sha256(content).hexdigest()
    file.write_bytes(content)
    uploads = Uploads()
    async with taking(uploads) as server, repository(server.host) as repo:
        await repo.upload_blob(digest, file, lambda sent: None)
        assert kinds(server) == "POST PUT"
    assert uploads.blobs == {f"sha256:{digest}": content}


async def test_a_broken_upload_goes_on_where_it_was(file: Path) -> None:
    uploads = Uploads()
    uploads.faults = ["", "cut", "cut", ""]
    async with taking(uploads) as server:
        await upload(server, file)
        ranges = [a.headers["Content-Range"] for a in server.asked if a.method == "PATCH"]
    assert uploads.blobs == {f"sha256:{DIGEST}": BLOB}
    assert ranges[:4] == ["0-99999", "100000-199999", "150000-249999", "200000-255999"]


async def test_an_upload_that_cannot_go_on_begins_again(file: Path) -> None:
    uploads = Uploads()
    uploads.resumes = False
    uploads.faults = ["", "cut"]
    async with taking(uploads) as server:
        await upload(server, file)
        ranges = [a.headers["Content-Range"] for a in server.asked if a.method == "PATCH"]
    assert uploads.blobs == {f"sha256:{DIGEST}": BLOB}
    assert ranges[1:3] == ["100000-199999", "0-99999"]


@pytest.mark.parametrize("fault", ["lost", "416", "503", "429"])
async def test_what_can_be_tried_again_is(file: Path, fault: str) -> None:
    uploads = Uploads()
    uploads.faults = ["", fault]
    async with taking(uploads) as server:
        await upload(server, file)
    assert uploads.blobs == {f"sha256:{DIGEST}": BLOB}


async def test_an_answer_that_was_lost_is_found_out(file: Path) -> None:
    uploads = Uploads()
    uploads.finish_faults = ["cut"]
    async with taking(uploads) as server:
        await upload(server, file)
        assert kinds(server).endswith("PUT HEAD")
        assert kinds(server).count("PATCH") == 3  # nothing is sent again


async def test_a_registry_that_only_breaks_off_is_left(file: Path) -> None:
    uploads = Uploads()
    uploads.faults = ["503"] * 100
    async with taking(uploads) as server:
        assert isinstance(await refused(server, file), RegistryBusy)
        assert kinds(server).count("PATCH") == 3


@pytest.mark.parametrize("says", ["0-0", "0-9", "bytes=0-41"])
async def test_a_registry_that_never_keeps_anything_is_left(file: Path, says: str) -> None:
    uploads = Forgetful()
    uploads.says = says
    async with taking(uploads) as server:
        assert "does not keep" in (await refused(server, file)).message
        assert kinds(server).count("PATCH") < 20
    assert not uploads.blobs


async def test_progress_gives_new_attempts(file: Path) -> None:
    uploads = Uploads()
    uploads.faults = ["503", "503", "", "503", "503", "", "503", "503"]
    async with taking(uploads) as server:
        await upload(server, file)
    assert uploads.blobs == {f"sha256:{DIGEST}": BLOB}


@pytest.mark.parametrize("status", ["400", "403", "405", "413"])
async def test_a_refusal_is_final(file: Path, status: str) -> None:
    uploads = Uploads()
    uploads.faults = [status]
    async with taking(uploads) as server:
        error = await refused(server, file)
        assert kinds(server) == "POST PATCH"
    assert error.code is Code.REGISTRY_FAILED


async def test_models_are_not_sent_to_another_host(file: Path) -> None:
    uploads = Uploads()
    async with taking(Uploads()) as other, taking(uploads) as server:
        for elsewhere in (other.url, "https://1.1.1.1", "//1.1.1.1"):
            uploads.elsewhere = elsewhere
            assert "another host" in (await refused(server, file)).message
        assert other.asked == []
        uploads.elsewhere = server.url  # itself, in full
        await upload(server, file)
    assert uploads.blobs == {f"sha256:{DIGEST}": BLOB}


async def test_a_redirected_chunk_is_not_followed(file: Path) -> None:
    uploads = Uploads()
    uploads.faults = ["307"]
    async with taking(uploads) as server:
        assert "307" in (await refused(server, file)).message


@pytest.fixture
def changed_file(file: Path) -> Path:
    file.write_bytes(BLOB[:-1] + b"x")
    return file


async def test_content_that_changed_is_told_as_the_registry_tells_it(changed_file: Path) -> None:
    async with taking(Uploads()) as server:
        assert "DIGEST_INVALID" in (await refused(server, changed_file)).message


async def test_a_registry_that_takes_it_for_another_blob(file: Path) -> None:
    uploads = Uploads()
    uploads.finish_faults = ["wrong"]
    async with taking(uploads) as server:
        assert "for another one" in (await refused(server, file)).message


async def test_a_file_that_is_gone_or_cut_off(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with taking(Uploads()) as server:
        error = await refused(server, file.with_name("absent"))
        assert (error.code, "was removed" in error.message) == (Code.NOT_FOUND, True)
    read = uploading._read

    def vanishing(path: Path, start: int, length: int) -> bytes:
        if start >= 150_000:
            path.unlink(missing_ok=True)
        return read(path, start, length)

    monkeypatch.setattr(uploading, "_read", vanishing)
    async with taking(Uploads()) as server:
        error = await refused(server, file)
        assert (error.code, "was removed" in error.message) == (Code.NOT_FOUND, True)
        assert not re.search(r"/tmp|\.py", error.message)


@pytest.mark.parametrize(
    ("status", "expected"), [(201, "POST"), (202, "POST PATCH PATCH PATCH PUT")]
)
async def test_another_repository_may_have_it(file: Path, status: int, expected: str) -> None:
    uploads = Uploads()
    uploads.mount_status = status
    async with taking(uploads) as server:
        await upload(server, file, "library/other")
        sent = [kind for kind in kinds(server).split() if kind != "GET"]
        assert " ".join(sent) == expected
    assert uploads.mounted == ["library/other"]
    assert uploads.blobs == {f"sha256:{DIGEST}": BLOB}


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_what_may_not_be_read_there_is_sent(file: Path, status: int) -> None:
    uploads = Uploads()
    uploads.mount_status = status
    async with taking(uploads) as server:
        await upload(server, file, "private/other")
        assert kinds(server).count("POST") == 2
    assert uploads.mounted == ["private/other"]


async def test_a_cancelled_upload_ends_at_once_and_leaves_no_blob(file: Path) -> None:
    uploads, begun = Uploads(), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            begun.set()
            await asyncio.sleep(60)
        return await uploads(request)

    async with small_server(slow) as server:
        task = asyncio.create_task(upload(server, file))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert uploads.blobs == {}


async def test_a_registry_that_takes_no_more_bytes_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploading, "CHUNK", 2**30)
    uploads, over = Uploads(), asyncio.Event()
    large = _sparse(tmp_path / "large", 2**28)  # more than any buffer on the way holds

    async def stuck(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            await over.wait()
        return await uploads(request)

    async with small_server(stuck) as server, repository(server.host) as repo:
        # For its bytes alone: whatever is asked before has all the time of a busy machine.
        repo.patience = replace(QUICK, answer=0.5, attempts=1)
        with pytest.raises(ConnectionBroken, match="no more bytes"):
            await repo.upload_blob(DIGEST, large, lambda sent: None)
        over.set()


def _sparse(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path
