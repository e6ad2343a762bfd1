"""Which addresses are public, which are private, and that nothing connects to the wrong kind."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from pronk.workers.store.registry.addresses import (
    AddressRefused,
    GuardedResolver,
    Reach,
    addresses_of,
    nearest,
    reach_of,
)
from support.calls import PATIENCE

PUBLIC, PRIVATE = "93.184.216.34", "10.0.0.7"


@pytest.mark.parametrize("address", [PUBLIC, "1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1"])
def test_an_address_on_the_internet_is_far(address: str) -> None:
    assert reach_of(address) is Reach.FAR


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",  # of a provider, or a VPN
        "198.18.0.1",
        "::1",
        "fd00::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "2002:7f00:1::",  # 6to4 of 127.0.0.1
        "64:ff9b::10.0.0.1",  # what NAT64 makes of it
        "64:ff9b:1::10.0.0.1",
        "64:ff9b:1::1.1.1.1",
        "2001:db8::1",
    ],
)
def test_an_address_of_a_private_network_is_near(address: str) -> None:
    assert reach_of(address) is Reach.NEAR


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "0.0.0.0",
        "0.1.2.3",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::7f00:1",  # 127.0.0.1 as IPv6 once wrote it
        "fe80::1",
        "fe80::1%eth0",
        "ff02::1",
        "::ffff:169.254.169.254",
        "64:ff9b::169.254.169.254",
        "2002:a9fe:a9fe::",
        "192.0.0.192",
        "100.100.100.200",
        "168.63.129.16",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
        "64:ff9b:1::169.254.169.254",
    ],
)
def test_an_address_that_no_registry_can_have_leads_nowhere(address: str) -> None:
    assert reach_of(address) is Reach.NOWHERE


@pytest.mark.parametrize("text", ["", "example.org", "127.1", "2130706433", "0x7f000001", "1.2.3"])
def test_what_is_no_address_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        reach_of(text)


def test_a_name_with_a_public_address_is_public() -> None:
    assert nearest([PRIVATE, PUBLIC]) is Reach.FAR
    assert nearest(["169.254.169.254", PRIVATE]) is Reach.NEAR
    assert nearest(["169.254.169.254"]) is Reach.NOWHERE
    assert nearest([]) is Reach.NOWHERE


async def _resolved(
    monkeypatch: pytest.MonkeyPatch, reach: Reach | None, *addresses: str
) -> list[str]:
    def leads_to(host: str, port: int, **more: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", leads_to)
    return [found["host"] for found in await GuardedResolver(reach).resolve("any.example", 443)]


async def test_only_addresses_of_the_wanted_kind_are_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = PUBLIC, PRIVATE, "169.254.169.254"
    assert await _resolved(monkeypatch, Reach.FAR, *both) == [PUBLIC]
    assert await _resolved(monkeypatch, Reach.NEAR, *both) == [PRIVATE]
    assert await _resolved(monkeypatch, None, *both) == list(both)  # the proxy's


async def test_a_name_without_such_an_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AddressRefused):
        await _resolved(monkeypatch, Reach.FAR, PRIVATE, "127.0.0.1")
    with pytest.raises(AddressRefused):
        await _resolved(monkeypatch, Reach.NEAR, PUBLIC)


async def test_names_that_never_resolve_hold_nobody_else_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()
    look_up = socket.getaddrinfo

    def slow(host: str, *more: Any, **named: Any) -> list[Any]:
        if host.endswith(".slow.test"):
            over.wait(PATIENCE)
            raise socket.gaierror(socket.EAI_AGAIN, "try again")
        return look_up(host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    waiting = [asyncio.create_task(addresses_of(f"{n}.slow.test", 443)) for n in range(40)]
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE):
            assert "127.0.0.1" in await addresses_of("localhost", 443)
            await asyncio.to_thread(bool)
        assert not any(task.done() for task in waiting)
    finally:
        over.set()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(end, OSError) for end in ends)
