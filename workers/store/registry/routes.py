"""Where a registry may send us.

| from                  | to                                               | allowed |
|-----------------------|--------------------------------------------------|---------|
| who asks for a model  | a registry, on the internet or a private network | yes     |
|                       | one on a link-local, multicast, reserved address | no      |
| a registry            | itself: the same host and port                   | yes     |
|                       | another host on the internet                     | yes     |
|                       | another host on a private address                | named   |
|                       | a link-local, multicast or reserved address      | no      |
| https                 | http                                             | no      |
| http                  | https                                            | yes     |

"Named": where the operator's settings for this very registry name that host (`realm`, `storage`).
"Same port" takes 80 and 443 for one, where a registry without a port of its own goes from http to
https. Redirects are followed at most ten times, for questions that change nothing; an upload goes
to the registry itself or nowhere, since the bytes of a model are its owner's.

A name counts as public as soon as one of its addresses is. From then on only its public addresses
are connected to, and of a private one only its private addresses, whatever its name leads to a
moment later. Where a proxy of the environment connects, it alone resolves names: literal addresses
and names that are known here are still looked at, all others are the proxy's to allow.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from yarl import URL

from ....protocol.errors import Code, PronkError
from ....protocol.registries import RegistryAccess, canonical_host
from .addresses import Reach, addresses_of, nearest
from .failures import failed, printable
from .transport import Hop, authority, proxy_for, unresolved

MAX_URL = 8 * 1024
"""Characters of an address that a registry names. Signed ones of object stores have some 2,000."""

LOOK_UP_SECONDS = 20.0
"""Longest time for a name to be resolved."""

_SENDABLE = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Site:
    """A registry, as it was found: where it stands and how it is spoken to."""

    host: str
    """As settings have it: `registry.example.org`, `127.0.0.1:5000`."""
    url: URL
    """Scheme, host and port."""
    access: RegistryAccess
    verify: bool = True
    reach: Reach | None = None
    proxy: URL | None = None

    def hop(self, path: str) -> Hop:
        """The registry itself, at this path."""
        return Hop(self.url.joinpath(*path.split("/")), self.reach, self.verify, self.proxy, True)

    def is_at(self, url: URL) -> bool:
        """Whether this address is the registry itself."""
        same_port = url.port == self.url.port
        usual = url.is_default_port() and self.url.is_default_port()
        return url.host == self.url.host and (same_port or usual)


def base_url(host: str, scheme: str) -> URL:
    """The address of the registry that is called so. Raises `PronkError` (invalid_request)."""
    try:
        canonical_host(host)
        url = URL(f"{scheme}://{host.lower()}")
        if url.host and url.port:
            return url
    except ValueError:
        pass
    raise PronkError(
        Code.INVALID_REQUEST, f"{printable(host, 60)} is not the address of a registry"
    )


async def place(site: Site) -> Site:
    """The site with its reach and proxy. Raises `PronkError` where no registry may stand there."""
    reach, proxy = await _reach(site.url)
    if reach is Reach.NOWHERE:
        raise failed(f"no registry may stand on the address of {site.host}")
    return Site(site.host, site.url, site.access, site.verify, None if proxy else reach, proxy)


def location(text: str, base: URL) -> URL:
    """The address that a registry names in a `Location` or a `realm`, relative to `base` or not.

    Raises `PronkError` where it is none that a request may be sent to.
    """
    if len(text) > MAX_URL or not _SENDABLE.fullmatch(text):
        raise failed(f"{authority(base)} names an address that is none")
    try:
        # As it is: a signed address does not survive being written in another way.
        url = base.join(URL(text, encoded=True))
        whole = url.scheme in ("http", "https") and bool(url.host) and bool(url.port)
    except ValueError:
        url, whole = base, False
    if not whole:
        raise failed(f"{authority(base)} names an address that is none of HTTP")
    if url.user is not None or url.password is not None:
        raise failed(f"{authority(base)} names an address with a password in it")
    return url.with_fragment(None) if url.raw_fragment else url


async def follow(site: Site, url: URL, before: URL, *, realm: bool = False) -> Hop:
    """The way to an address that the answer from `before` named, as its `realm` or to redirect.

    Raises `PronkError` where it must not be gone.
    """
    if before.scheme == "https" and url.scheme != "https":
        raise failed(f"{authority(before)} leads from https to http, where anybody can listen")
    if site.is_at(url):
        # A registry that was reached over plain HTTP has a certificate like any other on its way
        # to https; one whose certificate could not be verified keeps that.
        return Hop(url, site.reach, site.verify, site.proxy, own=True)
    reach, proxy = await _reach(url)
    host = authority(url)
    named = host == site.access.realm if realm else host in site.access.storage
    if reach is Reach.NOWHERE:
        raise failed(f"{site.host} leads to {printable(host, 100)}, where no registry may stand")
    if reach is Reach.NEAR and not named:
        entry = f'realm = "{host}"' if realm else f'storage = ["{host}"]'
        raise failed(
            f"{site.host} leads to {printable(host, 100)}, which is a private address; if that is "
            f'right, write {printable(entry)} under [registry."{site.host}"] in the settings'
        )
    return Hop(url, None if proxy else reach, proxy=proxy)


async def _reach(url: URL) -> tuple[Reach, URL | None]:
    host, port, proxy = url.host or "", url.port or 0, proxy_for(url)
    try:
        async with asyncio.timeout(LOOK_UP_SECONDS):
            return nearest(await addresses_of(host, port)), proxy
    except (OSError, UnicodeError) as error:
        if proxy:
            return Reach.FAR, proxy
        if isinstance(error, OSError):
            raise unresolved(authority(url), error) from None
        raise failed(f"there is no host {printable(authority(url), 100)}") from None
