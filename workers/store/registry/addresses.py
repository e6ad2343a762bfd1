"""Which network addresses a registry may send us to.

A registry that somebody else runs answers with redirects, places for uploads and addresses of token
servers. If they were followed anywhere, it could make this host send requests into the network that
it stands in, with the rights of whoever is inside.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_OWN_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")
"""For translators of a network's own, which mostly use the last 32 bits, too."""
_METADATA = tuple(
    ipaddress.ip_network(network)
    for network in (
        "192.0.0.0/24",
        "100.100.100.200",
        "168.63.129.16",
        "fd00:ec2::/32",
        "fd20:ce::254",
    )
)
"""Where clouds keep what their hosts are told, passwords among it, on addresses that look like any
other; link-local ones are refused as such."""


_names = ThreadPoolExecutor(64, "registry-names")
"""Threads that look names up. Whose name it is decides how long that takes, up to half a minute;
the event loop's own threads are two, and files are deleted in the default ones."""


class Reach(Enum):
    """How far away an address is."""

    FAR = "public"
    """On the internet."""
    NEAR = "private"
    """This host, or a private network."""
    NOWHERE = "unusable"
    """Nothing that a registry may stand on: link-local and other addresses where clouds keep their
    metadata, multicast, unspecified, reserved."""


class AddressRefused(OSError):
    """A name leads only to addresses that it may not lead to."""


def reach_of(address: str) -> Reach:
    """How far away a literal address is. Raises ValueError for what is none."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inside = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _NAT64 or ip in _OWN_NAT64:
            inside = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if ip in _OWN_NAT64 and reach_of(str(inside)) is not Reach.NOWHERE:
            return Reach.NEAR
        if inside is not None:
            return reach_of(str(inside))
    # In older Pythons ::1 is reserved, too.
    unusable = ip.is_link_local or ip.is_multicast or ip.is_unspecified
    if unusable or (ip.is_reserved and not ip.is_loopback):
        return Reach.NOWHERE
    if any(ip in network for network in _METADATA):
        return Reach.NOWHERE
    if isinstance(ip, ipaddress.IPv4Address) and int(ip) >> 24 == 0:
        return Reach.NOWHERE
    if not ip.is_global or (isinstance(ip, ipaddress.IPv6Address) and ip not in _UNICAST):
        return Reach.NEAR
    return Reach.FAR


async def addresses_of(host: str, port: int) -> list[str]:
    """The addresses of a name, or of a literal address itself. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_names, _look_up, host, port)
    return list(dict.fromkeys(str(info[4][0]) for info in found))


def _look_up(host: str, port: int) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def nearest(addresses: list[str]) -> Reach:
    """What a name counts as that has these addresses: public as soon as one of them is."""
    reaches = {reach_of(address) for address in addresses}
    for reach in (Reach.FAR, Reach.NEAR):
        if reach in reaches:
            return reach
    return Reach.NOWHERE


class GuardedResolver(AbstractResolver):
    """Gives aiohttp's connector those addresses of a name alone that are as far away as `reach`.

    The connector connects to what it is given here, so that a name which leads elsewhere a moment
    after it was looked at leads nowhere. Literal addresses do not come by: whoever sends a request
    has looked at them.
    """

    def __init__(self, reach: Reach | None) -> None:
        self._reach = reach
        """None for any."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of `host` that may be connected to."""
        found = await addresses_of(host, port)
        kept = [each for each in found if self._reach is None or reach_of(each) is self._reach]
        if not kept:
            raise AddressRefused
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in kept
        ]

    async def close(self) -> None:
        """Nothing is kept."""
