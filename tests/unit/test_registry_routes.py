"""Where a registry may send us: each row of the policy."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from yarl import URL

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.registries import RegistryAccess
from pronk.workers.store.registry.addresses import Reach
from pronk.workers.store.registry.routes import Site, base_url, follow, location, place
from pronk.workers.store.registry.transport import proxy_for

PUBLIC = "https://93.184.216.34"
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def site(url: str, reach: Reach = Reach.FAR, **access: Any) -> Site:
    parsed = URL(url)
    return Site(parsed.authority, parsed, RegistryAccess(**access), reach=reach)


async def led(start: Site, target: str, *, realm: bool = False) -> Any:
    return await follow(start, location(target, start.url), start.url, realm=realm)


async def refused(start: Site, target: str, *, realm: bool = False) -> str:
    with pytest.raises(PronkError) as caught:
        await led(start, target, realm=realm)
    assert caught.value.code is Code.REGISTRY_FAILED
    return caught.value.message


async def test_a_registry_may_lead_to_the_internet() -> None:
    hop = await led(site(PUBLIC), "https://1.1.1.1/blob?signed=a%2Fb%3D")
    assert (hop.reach, hop.own, hop.verify) == (Reach.FAR, False, True)
    assert str(hop.url) == "https://1.1.1.1/blob?signed=a%2Fb%3D"


@pytest.mark.parametrize(
    "target",
    [
        "https://127.0.0.1/x",
        "https://10.0.0.1:8443/x",
        "https://192.168.0.1/x",
        "https://[::1]/x",
        "https://[fd00::1]/x",
        "https://[::ffff:127.0.0.1]/x",
        "https://localhost/x",
        "https://127.1/x",
        "https://2130706433/x",
        "https://0x7f000001/x",
    ],
)
@pytest.mark.parametrize("start", [site(PUBLIC), site("https://127.0.0.1:5000", Reach.NEAR)])
async def test_nobody_leads_to_another_private_address(start: Site, target: str) -> None:
    assert "private address" in await refused(start, target)


@pytest.mark.parametrize(
    "target", ["https://169.254.169.254/latest/meta-data", "https://0.0.0.0/", "https://[fe80::1]/"]
)
async def test_nobody_leads_to_where_no_registry_may_stand(target: str) -> None:
    start = site(PUBLIC, storage=["169.254.169.254", "0.0.0.0"])
    assert "no registry may stand" in await refused(start, target)


async def test_a_private_registry_leads_to_itself_alone() -> None:
    start = site("https://127.0.0.1:5000", Reach.NEAR)
    hop = await led(start, "/v2/elsewhere")
    assert (hop.own, hop.reach) == (True, Reach.NEAR)
    assert "private address" in await refused(start, "https://127.0.0.1:5001/v2/")
    assert "private address" in await refused(start, "https://127.0.0.2:5000/v2/")


async def test_what_the_settings_name_for_this_registry_may_be_private() -> None:
    start = site("https://127.0.0.1:5000", Reach.NEAR, storage=["10.0.0.1:9000"], realm="10.0.0.2")
    assert (await led(start, "https://10.0.0.1:9000/x")).reach is Reach.NEAR
    assert (await led(start, "https://10.0.0.2/token", realm=True)).reach is Reach.NEAR
    # What is named as one is not the other, and a port is part of the name.
    assert 'storage = ["10.0.0.2"]' in await refused(start, "https://10.0.0.2/x")
    assert 'realm = "10.0.0.1:9000"' in await refused(start, "https://10.0.0.1:9000/", realm=True)
    assert "private address" in await refused(start, "https://10.0.0.1/x")


async def test_https_never_leads_to_http() -> None:
    assert "from https to http" in await refused(site(PUBLIC), "http://1.1.1.1/x")
    assert "from https to http" in await refused(site(PUBLIC), "http://93.184.216.34/x")
    plain = site("http://93.184.216.34")
    assert (await led(plain, "https://1.1.1.1/x")).secure
    assert (await led(plain, "https://93.184.216.34/x")).own
    assert not (await led(plain, "http://1.1.1.1/x")).secure


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ftp://1.1.1.1/x",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_SET",
        "javascript:alert(1)",
        "https://user:password@1.1.1.1/x",
        "https://1.1.1.1:99999/x",
        "https://[::1/x",
        "https://1.1.1.1/a b",
        "https://1.1.1.1/\r\nX-Injected: yes",
        "https://1.1.1.1/\x00",
        "https://1.1.1.1/ü",
        "https://1.1.1.1/" + "x" * 9000,
    ],
)
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(PronkError) as caught:
        location(text, URL(PUBLIC))
    assert caught.value.code is Code.REGISTRY_FAILED
    assert "password@" not in caught.value.message


def test_addresses_may_be_relative() -> None:
    base = URL("https://a.example/v2/x/blobs/uploads/")
    assert str(location("/v2/x/1?state=a%3D", base)) == "https://a.example/v2/x/1?state=a%3D"
    assert str(location("1", base)) == "https://a.example/v2/x/blobs/uploads/1"
    assert str(location("//b.example/1", base)) == "https://b.example/1"


async def test_a_registry_that_is_asked_for_may_be_private_but_not_anything() -> None:
    assert (await place(site("https://127.0.0.1:5000"))).reach is Reach.NEAR
    assert (await place(site(PUBLIC))).reach is Reach.FAR
    for host in ("169.254.169.254", "0.0.0.0", "224.0.0.1"):
        with pytest.raises(PronkError, match="no registry may stand"):
            await place(site(f"https://{host}"))


@pytest.mark.parametrize("host", ["a:b", "a:b:c", "a:0", "a:99999", "a:", "a/b", "a@b", ""])
def test_a_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(PronkError) as caught:
        base_url(host, "https")
    assert caught.value.code is Code.INVALID_REQUEST


def test_proxies_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "inside.example,.corp.example")
    assert str(proxy_for(URL("https://registry.ollama.ai"))) == "http://proxy.example:3128"
    for direct in (
        "http://registry.ollama.ai",
        "https://inside.example:5000",
        "https://a.corp.example",
        "https://localhost:5000",
        "https://127.0.0.1:5000",
        "https://[::1]:5000",
    ):
        assert proxy_for(URL(direct)) is None, direct


def test_a_proxy_that_is_none_is_told_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://ann:secret@proxy.example:1080")
    with pytest.raises(PronkError, match="HTTPS_PROXY") as caught:
        proxy_for(URL("https://registry.ollama.ai"))
    assert "secret" not in caught.value.message


async def test_behind_a_proxy_what_is_known_to_be_private_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(host: str, port: int, **more: Any) -> list[Any]:
        if host == "inside.example":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.9", port))]
        raise socket.gaierror(socket.EAI_NONAME, "no")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    start = await place(site("https://registry.example"))
    assert (start.reach, str(start.proxy)) == (None, "http://proxy.example:3128")
    assert (await led(start, "https://storage.example/x")).proxy == start.proxy
    assert "private address" in await refused(start, "https://inside.example/x")
