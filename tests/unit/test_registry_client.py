"""The client against registries that answer wrongly, slowly, with too much, or from elsewhere."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import socket
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pronk.protocol.errors import Code, PronkError
from pronk.workers.store.registry.client import Repository
from pronk.workers.store.registry.failures import (
    CertificateUnknown,
    ConnectionBroken,
    NoTls,
    RegistryBusy,
)
from support.registry import Authority
from support.small_server import SHORT, Answer, repository, small_server, tls_context

CONTENT = b'{"schemaVersion":2}'
BLOB = bytes(range(256)) * 40
DIGEST = hashlib.sha256(BLOB).hexdigest()
GIB = 2**30


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


async def refused(asked: Any, code: Code = Code.REGISTRY_FAILED) -> PronkError:
    with pytest.raises(PronkError) as caught:
        await asked
    assert caught.value.code is code
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 600
    return caught.value


async def read(repo: Repository, start: int = 0, end: int | None = None) -> bytes:
    async with repo.read_blob(DIGEST, start, end) as stream:
        return b"".join([chunk async for chunk in stream])


def answers(*given: web.Response | Answer) -> Answer:
    """Each answer for one request, the last one for all that follow; `/v2/` is there."""
    left = list(given)

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/v2/":
            return web.Response()
        now = left.pop(0) if len(left) > 1 else left[0]
        if not isinstance(now, web.Response):
            return await now(request)
        return web.Response(status=now.status, headers=now.headers, body=now.body)

    return answer


async def test_a_manifest_comes_as_it_is() -> None:
    digest = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
    answer = answers(web.Response(body=CONTENT, headers={"Docker-Content-Digest": digest}))
    async with small_server(answer) as server, repository(server.host) as repo:
        assert await repo.manifest() == CONTENT
        asked = server.asked[-1]
    assert asked.path == "/v2/library/tiny/manifests/latest"
    assert asked.headers["Accept-Encoding"] == "identity"
    assert "application/vnd.oci.image.manifest.v1+json" in asked.headers["Accept"]
    assert asked.headers["User-Agent"].startswith("pronk/")
    assert "Authorization" not in asked.headers


async def test_names_keep_their_tag_and_their_case() -> None:
    async with small_server(answers(web.Response(body=CONTENT))) as server:
        async with repository(server.host, path="Org/Repo-GGUF:Q4_K_M") as repo:
            await repo.manifest()
        assert server.asked[-1].path == "/v2/Org/Repo-GGUF/manifests/Q4_K_M"


async def test_a_model_that_is_not_there() -> None:
    absent = answers(web.Response(status=404))
    async with small_server(absent) as server, repository(server.host) as repo:
        error = await refused(repo.manifest(), Code.NOT_FOUND)
        assert await repo.blob_size(DIGEST) is None
    assert error.message == "pull model manifest: file does not exist"


async def test_a_manifest_with_another_digest_than_it_says() -> None:
    wrong = web.Response(body=CONTENT, headers={"Docker-Content-Digest": f"sha256:{'0' * 64}"})
    async with small_server(answers(wrong)) as server, repository(server.host) as repo:
        assert "digest" in (await refused(repo.manifest())).message


@pytest.mark.parametrize("declared", [True, False])
async def test_a_huge_manifest_is_not_read(declared: bool) -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        if declared:
            response.content_length = GIB
        await response.prepare(request)
        for _ in range(GIB // 65536):
            await response.write(bytes(65536))
            sent += 65536
        return response

    async with small_server(answers(endless)) as server, repository(server.host) as repo:
        assert "more than 1024 KiB" in (await refused(repo.manifest())).message
    assert sent < 32 * 2**20


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "gzip, gzip"])
async def test_compressed_answers_are_refused(coding: str) -> None:
    bomb = web.Response(body=gzip.compress(bytes(2**20)), headers={"Content-Encoding": coding})
    async with small_server(answers(bomb)) as server, repository(server.host) as repo:
        for asked in (repo.manifest(), read(repo), repo.blob_size(DIGEST)):
            assert "compressed" in (await refused(asked)).message


@pytest.mark.parametrize("coding", ["", "identity", "aws-chunked"])
async def test_a_coding_that_compresses_nothing_is_borne_with(coding: str) -> None:
    plain = web.Response(body=BLOB, headers={"Content-Encoding": coding})
    async with small_server(answers(plain)) as server, repository(server.host) as repo:
        assert await read(repo) == BLOB


async def test_a_blob_and_its_parts() -> None:
    async def whole(request: web.Request) -> web.StreamResponse:
        if "Range" not in request.headers:
            return web.Response(body=BLOB)
        first, last = request.headers["Range"].removeprefix("bytes=").split("-")
        end = int(last) + 1 if last else len(BLOB)
        headers = {"Content-Range": f"bytes {first}-{end - 1}/{len(BLOB)}"}
        return web.Response(status=206, body=BLOB[int(first) : end], headers=headers)

    async with small_server(answers(whole)) as server, repository(server.host) as repo:
        assert await read(repo) == BLOB
        assert await read(repo, 100) == BLOB[100:]
        async with repo.read_blob(DIGEST, 10, 20) as stream:
            assert (stream.ranged, stream.total, stream.length) == (True, len(BLOB), 10)
            assert b"".join([chunk async for chunk in stream]) == BLOB[10:20]
        assert server.asked[-1].headers["Range"] == "bytes=10-19"
        assert await repo.blob_size(DIGEST) == len(BLOB)


async def test_a_registry_that_tells_no_size_beforehand() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "HEAD":
            silent = web.StreamResponse()
            silent.enable_chunked_encoding()
            await silent.prepare(request)
            return silent
        first = {"Content-Range": f"bytes 0-0/{len(BLOB)}"}
        return web.Response(status=206, headers=first, body=BLOB[:1])

    async with small_server(answers(answer)) as server, repository(server.host) as repo:
        assert await repo.blob_size(DIGEST) == len(BLOB)


async def test_a_registry_that_knows_no_ranges_sends_all() -> None:
    async with (
        small_server(answers(web.Response(body=BLOB))) as server,
        repository(server.host) as repo,
        repo.read_blob(DIGEST, 10, 20) as stream,
    ):
        assert (stream.ranged, stream.total) == (False, len(BLOB))
        assert b"".join([chunk async for chunk in stream]) == BLOB


@pytest.mark.parametrize(
    "content_range",
    ["", "bytes 11-19/100", "bytes 10-20/100", "bytes 10-19/15", "bytes 19-10/100", "bytes */100",
     "bytes 10-18/100", "lines 10-19/100", f"bytes 10-{'9' * 40}/*"],
)  # fmt: skip
async def test_other_bytes_than_were_asked_for_are_refused(content_range: str) -> None:
    wrong = web.Response(status=206, body=bytes(10), headers={"Content-Range": content_range})
    async with small_server(answers(wrong)) as server, repository(server.host) as repo:
        assert "other bytes" in (await refused(read(repo, 10, 20))).message


async def test_more_bytes_than_were_promised_are_not_passed_on() -> None:
    async def more(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=206, headers={"Content-Range": "bytes 10-19/100"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(bytes(11))
        return response

    async with small_server(answers(more)) as server, repository(server.host) as repo:
        assert "more of a blob" in (await refused(read(repo, 10, 20))).message


async def _cut(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    response.content_length = len(BLOB)
    await response.prepare(request)
    await response.write(BLOB[:1000])
    assert request.transport
    request.transport.abort()
    return response


async def _stalled(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    response.content_length = len(BLOB)
    await response.prepare(request)
    await response.write(BLOB[:1000])
    await asyncio.sleep(60)
    return response


async def _silent(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


@pytest.mark.parametrize("broken", [_cut, _stalled, _silent])
async def test_a_broken_or_silent_connection_is_worth_another_one(broken: Answer) -> None:
    async with (
        small_server(answers(broken)) as server,
        repository(server.host, patience=SHORT) as repo,
    ):
        with pytest.raises(ConnectionBroken):
            await read(repo)


async def test_a_manifest_is_asked_for_again() -> None:
    answer = answers(_cut, web.Response(status=503), web.Response(body=CONTENT))
    async with small_server(answer) as server, repository(server.host) as repo:
        assert await repo.manifest() == CONTENT


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
async def test_a_busy_registry_says_when_to_come_back(status: int) -> None:
    busy = web.Response(status=status, headers={"Retry-After": "7"})
    async with small_server(answers(busy)) as server, repository(server.host) as repo:
        error = await refused(repo.manifest())
        assert isinstance(error, RegistryBusy)
        assert error.retry_after == 7.0
        manifests = [asked for asked in server.asked if asked.path != "/v2/"]
        assert len(manifests) == 1  # it is not asked again before that
        with pytest.raises(RegistryBusy):
            await read(repo)


async def test_a_registrys_own_words_are_quoted_but_not_trusted() -> None:
    nasty = "\x1b[31mred\n" + "x" * 5000
    said = web.json_response({"errors": [{"code": "DENIED", "message": nasty}]}, status=403)
    async with small_server(answers(said)) as server, repository(server.host) as repo:
        error = await refused(repo.manifest())
    assert "DENIED: " in error.message
    assert "\x1b" not in error.message


async def test_what_is_no_registrys_error_is_not_quoted() -> None:
    inside = web.Response(status=400, text="uid=0(root) secret of another service")
    async with small_server(answers(inside)) as server, repository(server.host) as repo:
        assert "secret" not in (await refused(repo.manifest())).message


@pytest.mark.parametrize("garbage", [b"SSH-2.0-OpenSSH_9.2\r\n", b"", b"HTTP/1.1 999\r\n\r\n"])
async def test_what_does_not_speak_http_is_no_registry(garbage: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(garbage)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with repository(f"127.0.0.1:{port}") as repo:
            await refused(repo.manifest())


async def test_a_host_that_is_not_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{unused.getsockname()[1]}"
        async with repository(host, insecure=False) as repo:
            error = await refused(repo.manifest())
    assert isinstance(error, ConnectionBroken)
    assert "Connection refused" in error.message


async def test_a_name_that_cannot_be_resolved() -> None:
    async with repository("no-such-host.invalid", insecure=False) as repo:
        error = await refused(repo.manifest())
    assert "there is no host no-such-host.invalid" in error.message


# Redirects.


def redirect(target: str, status: int = 307) -> web.Response:
    return web.Response(status=status, headers={"Location": target})


async def test_redirects_within_the_registry_are_followed() -> None:
    answer = answers(
        redirect("/elsewhere?a=%2F", 302), redirect("../again"), web.Response(body=BLOB)
    )
    async with small_server(answer) as server, repository(server.host) as repo:
        assert await read(repo) == BLOB
    assert [asked.path for asked in server.asked[-2:]] == ["/elsewhere?a=%2F", "/again"]


async def test_redirects_have_an_end() -> None:
    async with small_server(answers(redirect("/again"))) as server, repository(server.host) as repo:
        assert "more than 10 times" in (await refused(read(repo))).message
        assert len(server.asked) == 12


async def test_a_redirect_to_another_private_address_is_not_followed() -> None:
    async with (
        small_server(answers(web.Response(body=BLOB))) as other,
        small_server(answers(redirect(f"{other.url}/secret"))) as server,
        repository(server.host) as repo,
    ):
        for asked in (repo.manifest(), read(repo), repo.blob_size(DIGEST)):
            assert "private address" in (await refused(asked)).message
        assert other.asked == []


async def test_a_name_that_changes_its_address_leads_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DNS rebinding: public while it is looked at, private when it is connected to."""
    answered: list[str] = []

    def fickle(host: str, port: int, **more: Any) -> list[Any]:
        answered.append("93.184.216.34" if not answered else "127.0.0.1")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answered[-1], port))]

    async with small_server(answers(web.Response(body=CONTENT))) as server:
        monkeypatch.setattr(socket, "getaddrinfo", fickle)
        port = server.host.partition(":")[2]
        async with repository(f"rebinding.example:{port}") as repo:
            error = await refused(repo.manifest())
        assert "may not come from" in error.message
        assert len(answered) > 1
        assert server.asked == []


@pytest.mark.parametrize("target", ["", "ftp://127.0.0.1/", "http://a:b@127.0.0.1/", "http://[/"])
async def test_a_place_that_is_no_address_is_refused(target: str) -> None:
    async with small_server(answers(redirect(target))) as server, repository(server.host) as repo:
        assert "names an address" in (await refused(read(repo))).message


# TLS.


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority") / "ca")


async def test_plain_http_is_for_the_insecure(tmp_path: Path) -> None:
    async with small_server(answers(web.Response(body=CONTENT))) as server:
        async with repository(server.host, insecure=False) as repo:
            error = await refused(repo.manifest())
        assert server.asked == []
    assert isinstance(error, NoTls)
    assert "`insecure`" in error.message


async def test_a_certificate_has_to_be_good_or_insecure(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, tls = answers(web.Response(body=CONTENT)), tls_context(authority, tmp_path / "tls")
    async with small_server(answer, tls) as server:
        async with repository(server.host, insecure=False) as repo:
            error = await refused(repo.manifest())
        assert isinstance(error, CertificateUnknown)
        assert "`insecure`" in error.message
        assert server.asked == []
        async with repository(server.host) as repo:
            assert await repo.manifest() == CONTENT
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
        async with repository(server.host, insecure=False) as repo:
            assert await repo.manifest() == CONTENT


async def test_https_does_not_lead_to_http(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    tls = tls_context(authority, tmp_path / "tls")
    async with (
        small_server(answers(web.Response(body=BLOB))) as plain,
        small_server(answers(redirect(f"{plain.url}/x")), tls) as server,
        repository(server.host, insecure=False) as repo,
    ):
        assert "from https to http" in (await refused(read(repo))).message
        assert plain.asked == []


# Proxies.


async def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with small_server(answers(web.Response(body=CONTENT))) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("://", "://ann:secret@"))
        # https is not there: nothing listens on this port of this host.
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
        async with repository("registry.example") as repo:
            assert await repo.manifest() == CONTENT
        asked = proxy.asked[-1]
    assert asked.path == "http://registry.example/v2/library/tiny/manifests/latest"
    assert asked.headers["Proxy-Authorization"].startswith("Basic ")


async def test_behind_a_proxy_redirects_are_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        small_server(answers(web.Response(body=BLOB))) as inside,
        small_server(answers(redirect(f"{inside.url}/secret"))) as proxy,
    ):
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
        async with repository("registry.example") as repo:
            assert "private address" in (await refused(read(repo))).message
        assert inside.asked == []
