"""Who is shown our passwords and tokens, and who is not."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.registries import RegistryAccess
from pronk.workers.store.registry import credentials, routes
from pronk.workers.store.registry.addresses import Reach
from pronk.workers.store.registry.failures import RegistryBusy
from support.registry import Authority
from support.small_server import Answer, repository, small_server, tls_context

BASIC = "Basic " + base64.b64encode(b"ann:secret").decode()
CONTENT = b"{}"
ANN = {"username": "ann", "password": "secret"}


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """What servers here need to be trusted."""
    authority = Authority(tmp_path / "ca")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    return tls_context(authority, tmp_path / "tls")


def access(host: str, **given: Any) -> dict[str, RegistryAccess]:
    return {host: RegistryAccess(**given)}


def wants(challenge: Callable[[], str] | str, accepted: str = "") -> Answer:
    """A registry that lets in who shows `accepted`, and asks everybody else."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/v2/" or request.headers.get("Authorization") == accepted:
            return web.Response(body=CONTENT)
        asked = challenge if isinstance(challenge, str) else challenge()
        return web.Response(status=401, headers={"WWW-Authenticate": asked} if asked else {})

    return answer


def gives(token: Any = "good", status: int = 200, **more: Any) -> Answer:
    """A token server."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"token": token, **more}, status=status)

    return answer


async def refused(asked: Awaitable[Any]) -> str:
    with pytest.raises(PronkError) as caught:
        await asked
    assert caught.value.code is Code.REGISTRY_FAILED
    assert "secret" not in caught.value.message
    assert BASIC not in caught.value.message
    return caught.value.message


@asynccontextmanager
async def with_realm(tls: ssl.SSLContext, answer: Answer, **more: str) -> Any:
    """A registry and its token server on another port."""
    async with small_server(answer, tls) as realm:
        asked = ",".join(
            [f'Bearer realm="{realm.url}/token"', *(f'{k}="{v}"' for k, v in more.items())]
        )
        async with small_server(wants(asked, "Bearer good"), tls) as server:
            yield server, realm


async def test_basic_is_answered_with_the_registrys_own_password(tls: ssl.SSLContext) -> None:
    async with small_server(wants('Basic realm="x"', BASIC), tls) as server:
        known = access(server.host, **ANN)
        async with repository(server.host, insecure=False, access=known) as repo:
            assert await repo.manifest() == CONTENT
            assert await repo.manifest() == CONTENT
        # Nothing is shown before it is asked for; then it is kept.
        assert server.authorizations == [None, BASIC, BASIC]


async def test_a_token_is_fetched_once_and_shown_to_the_registry_alone(tls: ssl.SSLContext) -> None:
    scope = {"service": "r.example", "scope": "repository:library/tiny:pull"}
    async with with_realm(tls, gives(), **scope) as (server, realm):
        known = access(server.host, **ANN, realm=realm.host)
        async with repository(server.host, insecure=False, access=known) as repo:
            assert await repo.manifest() == CONTENT
            assert await repo.manifest() == CONTENT
        assert server.authorizations == [None, "Bearer good", "Bearer good"]
        assert realm.authorizations == [BASIC]
        assert realm.asked[0].path == (
            "/token?scope=repository:library/tiny:pull&service=r.example"
        )


async def test_a_realm_on_another_host_is_shown_nothing(tls: ssl.SSLContext) -> None:
    """CVE-2025-51471: a registry that names somebody else's server for its realm."""
    async with with_realm(tls, gives()) as (server, realm):
        for known in (
            access(server.host, **ANN, storage=[realm.host]),
            access(server.host, **ANN, realm="127.0.0.1:1"),
            # Not even what belongs to that host: the token would go to the registry.
            access(realm.host, **ANN),
            {**access(server.host), **access(realm.host, **ANN, realm=realm.host)},
        ):
            async with repository(server.host, insecure=False, access=known) as repo:
                assert "private address" in await refused(repo.manifest())
        assert realm.asked == []


async def test_a_realm_that_may_be_asked_gets_no_password_that_is_not_its_own(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, with a realm that could stand on the internet."""

    async def public(url: Any) -> Any:
        return (Reach.NEAR if url.port == port else Reach.FAR), None

    async with with_realm(tls, gives(status=401)) as (server, realm):
        port = int(server.host.rpartition(":")[2])
        monkeypatch.setattr(routes, "_reach", public)
        # Connections are not what is looked at here.
        monkeypatch.setattr(
            "pronk.workers.store.registry.addresses.reach_of", lambda address: Reach.FAR
        )
        for known in (access(server.host, **ANN), access(realm.host, **ANN)):
            async with repository(server.host, insecure=False, access=known) as repo:
                await refused(repo.manifest())
        assert realm.authorizations == [None, None]


async def test_a_realm_has_to_speak_https(tls: ssl.SSLContext) -> None:
    async with small_server(gives()) as realm:
        asked = f'Bearer realm="{realm.url}/token"'
        async with small_server(wants(asked, "Bearer good"), tls) as server:
            known = access(server.host, **ANN, realm=realm.host)
            async with repository(server.host, insecure=False, access=known) as repo:
                assert "from https to http" in await refused(repo.manifest())
        assert realm.asked == []


@pytest.mark.parametrize(
    "realm",
    [
        "",
        "words and no address",
        "/token",
        "ftp://127.0.0.1/",
        "http://[",
        "https://a:b@c/",
    ],
)
async def test_a_realm_that_is_none(tls: ssl.SSLContext, realm: str) -> None:
    async with small_server(wants(f'Bearer realm="{realm}"'), tls) as server:
        known = access(server.host, **ANN)
        async with repository(server.host, insecure=False, access=known) as repo:
            message = await refused(repo.manifest())
            if not realm.startswith("http"):
                assert f'[registry."{server.host}"]' in message


async def test_a_redirect_carries_no_authorization(tls: ssl.SSLContext) -> None:
    async def blob(request: web.Request) -> web.StreamResponse:
        return web.Response(body=CONTENT)

    async with small_server(blob, tls) as storage:

        async def answer(request: web.Request) -> web.StreamResponse:
            if request.headers.get("Authorization") != BASIC:
                return web.Response(status=401, headers={"WWW-Authenticate": "Basic"})
            return web.Response(status=307, headers={"Location": f"{storage.url}/blob"})

        async with small_server(answer, tls) as server:
            known = access(server.host, **ANN, storage=[storage.host])
            async with (
                repository(server.host, insecure=False, access=known) as repo,
                repo.read_blob("0" * 64) as stream,
            ):
                assert [chunk async for chunk in stream] == [CONTENT]
            assert server.authorizations == [None, BASIC]
        assert storage.authorizations == [None]


async def test_who_is_led_to_is_told_nothing_when_it_asks(tls: ssl.SSLContext) -> None:
    async with small_server(wants("Basic", BASIC), tls) as storage:

        async def answer(request: web.Request) -> web.StreamResponse:
            return web.Response(status=307, headers={"Location": f"{storage.url}/blob"})

        async with small_server(answer, tls) as server:
            known = access(server.host, **ANN, storage=[storage.host])
            known |= access(storage.host, **ANN)
            async with repository(server.host, insecure=False, access=known) as repo:
                assert "does not allow" in await refused(repo.manifest())
        assert storage.authorizations == [None]


async def test_plain_http_is_shown_nothing_that_others_could_read() -> None:
    async with small_server(wants("Basic", BASIC)) as server:
        async with repository(server.host, access=access(server.host, **ANN)) as repo:
            assert "insecure = true" in await refused(repo.manifest())
        assert set(server.authorizations) == {None}
        known = access(server.host, **ANN, insecure=True)
        async with repository(server.host, access=known) as repo:
            assert await repo.manifest() == CONTENT


async def test_a_certificate_that_was_not_verified_is_shown_nothing(tmp_path: Path) -> None:
    unknown = tls_context(Authority(tmp_path / "ca"), tmp_path / "tls")
    async with small_server(wants("Basic", BASIC), unknown) as server:
        for given in (ANN, {"token": "secret-token"}):
            known = access(server.host, **given)
            async with repository(server.host, access=known) as repo:
                await refused(repo.manifest())
        assert set(server.authorizations) == {None}


async def test_a_token_server_of_a_plain_registry_is_that_registry() -> None:
    url = ""

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/token":
            return await gives()(request)
        return await wants(f'Bearer realm="{url}/token"', "Bearer good")(request)

    async with small_server(answer) as server:
        url = server.url
        async with repository(server.host) as repo:
            assert await repo.manifest() == CONTENT
        known = access(server.host, **ANN)
        async with repository(server.host, access=known) as repo:
            assert "insecure = true" in await refused(repo.manifest())
        assert BASIC not in server.authorizations


async def test_a_bearer_token_of_the_settings(tls: ssl.SSLContext) -> None:
    elsewhere = 'Bearer realm="https://127.0.0.1:1/token"'
    for asked in (elsewhere, 'Bearer realm="Authentication required", charset="UTF-8"', ""):
        async with small_server(wants(asked, "Bearer mine"), tls) as server:
            known = access(server.host, token="mine")
            async with repository(server.host, insecure=False, access=known) as repo:
                assert await repo.manifest() == CONTENT


async def test_what_the_keyring_has_is_used(tls: ssl.SSLContext) -> None:
    asked: list[str] = []

    def keyring(host: str) -> str:
        asked.append(host)
        return "ann:secret"

    async with small_server(wants("Basic", BASIC), tls) as server:
        async with repository(server.host, insecure=False, keyring=keyring) as repo:
            assert await repo.manifest() == CONTENT
        assert asked == [server.host]


@pytest.mark.parametrize("given", [{}, ANN, {"token": "secret-token"}])
@pytest.mark.parametrize("challenge", ["Basic", "Bearer", "Negotiate", ""])
async def test_a_registry_that_is_never_content_is_left(
    tls: ssl.SSLContext, given: Mapping[str, str], challenge: str
) -> None:
    async with small_server(wants(challenge), tls) as server:
        known = access(server.host, **given)
        async with repository(server.host, insecure=False, access=known) as repo:
            message = await refused(repo.manifest())
        assert f'[registry."{server.host}"]' in message
        assert len(server.asked) <= 3


async def test_a_registry_that_wants_another_token_each_time_is_left(tls: ssl.SSLContext) -> None:
    count = 0

    async def fresh(request: web.Request) -> web.StreamResponse:
        nonlocal count
        count += 1
        return await gives(f"token{count}")(request)

    async with with_realm(tls, fresh) as (server, realm):
        known = access(server.host, **ANN, realm=realm.host)
        async with repository(server.host, insecure=False, access=known) as repo:
            await refused(repo.manifest())
        assert len(server.asked) == 3


async def test_a_token_that_is_no_good_any_more_is_fetched_again(tls: ssl.SSLContext) -> None:
    now = "first"

    async def current(request: web.Request) -> web.StreamResponse:
        return await gives(now, expires_in=300)(request)

    async def answer(request: web.Request) -> web.StreamResponse:
        asked = f'Bearer realm="{realm.url}/token"'
        return await wants(asked, f"Bearer {now}")(request)

    async with small_server(current, tls) as realm, small_server(answer, tls) as server:
        known = access(server.host, **ANN, realm=realm.host)
        async with repository(server.host, insecure=False, access=known) as repo:
            await repo.manifest()
            now = "second"
            await repo.manifest()
        assert server.authorizations == [None, "Bearer first", "Bearer first", "Bearer second"]


@pytest.mark.parametrize(
    "token", [None, "", 7, "two words", "line\r\nX-Injected: yes", "ü", "x" * 20_000, ["good"]]
)
async def test_a_token_that_is_none(tls: ssl.SSLContext, token: Any) -> None:
    async with with_realm(tls, gives(token)) as (server, realm):
        known = access(server.host, realm=realm.host)
        async with repository(server.host, insecure=False, access=known) as repo:
            assert "token" in await refused(repo.manifest())


@pytest.mark.parametrize("seconds", [None, -1, 0, True, "soon", 1e300])
async def test_an_absurd_lifetime_does_no_harm(tls: ssl.SSLContext, seconds: Any) -> None:
    async with with_realm(tls, gives(expires_in=seconds)) as (server, realm):
        known = access(server.host, realm=realm.host)
        async with repository(server.host, insecure=False, access=known) as repo:
            assert await repo.manifest() == CONTENT


async def _redirects(request: web.Request) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": "https://127.0.0.1:1/"})


async def _huge(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"[" * 2**20)


async def _no_json(request: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>")


@pytest.mark.parametrize("answer", [_redirects, _huge, _no_json, gives(status=204)])
async def test_what_is_no_token_server(tls: ssl.SSLContext, answer: Answer) -> None:
    async with with_realm(tls, answer) as (server, realm):
        known = access(server.host, **ANN, realm=realm.host)
        async with repository(server.host, insecure=False, access=known) as repo:
            await refused(repo.manifest())


async def test_a_token_server_may_be_busy(tls: ssl.SSLContext) -> None:
    async with with_realm(tls, gives(status=503)) as (server, realm):
        known = access(server.host, **ANN, realm=realm.host)
        async with repository(server.host, insecure=False, access=known) as repo:
            with pytest.raises(RegistryBusy):
                await repo.manifest()
        assert len(realm.asked) == 3


async def test_whoever_waits_for_the_same_token_asks_once(tls: ssl.SSLContext) -> None:
    async with with_realm(tls, gives(expires_in=300)) as (server, realm):
        known = access(server.host, **ANN, realm=realm.host)
        async with repository(server.host, insecure=False, access=known) as repo:
            await asyncio.gather(*(repo.manifest() for _ in range(8)))
        assert len(realm.asked) == 1


async def test_ollamas_own_registry_is_told_apart(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No password helps there, so none is advised."""
    async with small_server(wants('Basic realm="x"', BASIC), tls) as server:
        async with repository(server.host, insecure=False) as repo:
            assert "username and password" in await refused(repo.manifest())
        monkeypatch.setattr(credentials, "_OLLAMA", server.host)
        async with repository(server.host, insecure=False) as repo:
            message = await refused(repo.manifest())
    assert "`ollama push`" in message
    assert "username and password" not in message
