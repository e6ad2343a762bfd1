"""Who calls, as far as a connection tells.

Without authentication, the address is what a shared host can tell its callers apart by: enough for
fairness, so that one machine's 500 requests do not delay the first one of another. It proves
nothing, and nothing is permitted by it. Headers such as X-Forwarded-For are not read, since
anybody can write them: behind a proxy, all callers are one.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Any

from ..protocol.messages.generation import Caller

NETWORK_BITS = 64
"""What counts of an IPv6 address: the rest of it a machine chooses as it likes, as often as it
likes."""


def anonymous(peer: Any) -> Caller:
    """The caller at the other end of a connection with this `peername`: a pair or a quadruple that
    begins with an address, or what a Unix socket or no socket at all gives.
    """
    if isinstance(peer, (tuple, list)) and peer and isinstance(peer[0], str):
        return _at(peer[0])
    return _at("")


@lru_cache(maxsize=4096)
def _at(text: str) -> Caller:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return Caller("anonymous@local")  # a Unix socket: of this host, and nothing more is known
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:  # of a socket that serves both kinds
            return Caller(f"anonymous@{address.ipv4_mapped}")
        if not (address.is_loopback or address.is_link_local):
            network = ipaddress.ip_network((int(address), NETWORK_BITS), strict=False)
            return Caller(f"anonymous@{network}")
    return Caller(f"anonymous@{address}")
