"""One HTTP request to one address that was found good, and what can go wrong with it, in words.

Nothing here follows a redirect, keeps a cookie, reads a `.netrc` or unpacks an answer: whatever a
registry answers has to be asked for first. A proxy is used where HTTPS_PROXY, HTTP_PROXY and
NO_PROXY (in upper or lower case) say so, as Ollama does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from ....protocol.errors import PronkError
from .addresses import AddressRefused, GuardedResolver, Reach, reach_of
from .failures import CertificateUnknown, ConnectionBroken, NoTls, failed, printable

READ_AHEAD = 512 * 1024
"""Bytes that a connection may be ahead of who reads from it."""

_PLAIN = ("", "identity", "aws-chunked")
"""Content-Encodings of what is not compressed. The last one is how a blob once came to an object
store, and some say so with what they send."""

FAULTS = (aiohttp.ClientError, TimeoutError, OSError, ValueError)
"""What can come out of aiohttp."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a registry is waited for. Times in seconds."""

    connect: float = 15.0
    """For a connection."""
    silence: float = 60.0
    """For the next bytes."""
    answer: float = 120.0
    """For all of an answer that is no blob, and for the beginning of one."""
    whole: float = 900.0
    """For a registry to put together what was uploaded, which may be copied once more."""
    attempts: int = 3
    """How often a question is asked whose answer did not come, or was to ask again."""
    pause: float = 0.5
    """Before the second attempt; doubled for each further one."""
    longest_pause: float = 30.0
    """A registry that wants to be left alone for longer is."""


@dataclass(frozen=True, slots=True)
class Hop:
    """An address that may be asked, and how."""

    url: URL
    reach: Reach | None
    """How far away the addresses are that may be connected to; None where a proxy connects."""
    verify: bool = True
    """Whether its certificate has to be good."""
    proxy: URL | None = None
    own: bool = False
    """Whether it is the registry itself."""

    def at(self, url: URL) -> Hop:
        """The same way to another path or query of the same host."""
        return replace(self, url=url)

    def with_query(self, query: Mapping[str, str]) -> Hop:
        """The same with this query."""
        return self.at(self.url.with_query(query))

    @property
    def host(self) -> str:
        """For people: the host, with its port where that is not the usual one."""
        return authority(self.url)

    @property
    def secure(self) -> bool:
        """Whether nobody on the way can read what is sent there."""
        return self.url.scheme == "https" and self.verify


def authority(url: URL) -> str:
    """`host`, or `host:port` where the port is not its scheme's own."""
    host = (url.host or "").lower()
    shown = f"[{host}]" if ":" in host else host
    return shown if url.is_default_port() else f"{shown}:{url.port}"


def proxy_for(url: URL) -> URL | None:
    """The proxy that the environment names for this address; never one for this host itself.

    Raises `PronkError` where the variable holds no proxy's address.
    """
    host = url.host or ""
    with contextlib.suppress(ValueError):
        if reach_of(host) is Reach.NEAR and host.startswith(("127.", "::1")):
            return None
    if host == "localhost" or proxy_bypass(f"{host}:{url.port}"):
        return None
    text = getproxies().get(url.scheme)
    if not text:
        return None
    try:
        proxy = URL(text if "://" in text else f"http://{text}")
        if proxy.scheme in ("http", "https") and proxy.host and proxy.port:
            return proxy
    except ValueError:
        pass
    raise failed(
        f"{url.scheme.upper()}_PROXY in the server's environment does not name a proxy that can be "
        "used; it has the form http://proxy.example.org:3128"
    )


class Transport:
    """Sends requests. Lives on one event loop."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._verified = ssl.create_default_context()
        self._unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._unverified.check_hostname = False
        self._unverified.verify_mode = ssl.CERT_NONE
        self._sessions: dict[Reach | None, aiohttp.ClientSession] = {}

    async def close(self) -> None:
        """Ends all connections."""
        for session in self._sessions.values():
            await session.close()

    @contextlib.asynccontextmanager
    async def send(
        self,
        method: str,
        hop: Hop,
        headers: Mapping[str, str],
        *,
        body: bytes | AsyncIterator[bytes] | None = None,
        slow: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to one request, of which nothing but the head was read.

        Where the body is an iterator, it is for who gives it to see that its bytes are taken.
        `slow` is for what takes a registry long.

        Raises `PronkError`: `ConnectionBroken` where another connection may do better,
        `CertificateUnknown`, `NoTls`, or a final one. What fails while the answer is read has to be
        brought `in_words` by who reads it.
        """
        try:
            seconds = self._patience.whole if slow else self._patience.answer
            async with asyncio.timeout(None if isinstance(body, AsyncIterator) else seconds):
                response = await self._session(hop.reach).request(
                    method,
                    hop.url,
                    headers={"Accept-Encoding": "identity", **headers},
                    data=body,
                    allow_redirects=False,
                    ssl=self._verified if hop.verify else self._unverified,
                    proxy=hop.proxy,
                    timeout=self._timeout(self._patience.whole if slow else self._patience.silence),
                )
        except FAULTS as error:
            raise self.in_words(hop, error) from None
        try:
            if response.headers.get("Content-Encoding", "").strip().lower() not in _PLAIN:
                raise failed(f"{hop.host} sent compressed data, which nobody asked for")
            yield response
        finally:
            response.release()  # and its connection is closed, where not all was read

    async def read(self, response: aiohttp.ClientResponse, hop: Hop, most: int) -> bytes:
        """All of an answer that may have so many bytes. Raises `PronkError`."""
        parts = bytearray()
        try:
            async with asyncio.timeout(self._patience.answer):
                async for part in response.content.iter_any():
                    parts += part
                    if len(parts) > most:
                        raise failed(
                            f"{hop.host} sent more than {most // 1024} KiB, which is too much"
                        )
        except FAULTS as error:
            raise self.in_words(hop, error) from None
        return bytes(parts)

    def _session(self, reach: Reach | None) -> aiohttp.ClientSession:
        # One for each reach: a connection that may be near must never be found by who may not.
        if reach not in self._sessions:
            self._sessions[reach] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    resolver=GuardedResolver(reach), limit=0, ssl=self._verified
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": _user_agent()},
                auto_decompress=False,
                read_bufsize=READ_AHEAD,
            )
        return self._sessions[reach]

    def _timeout(self, silence: float) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(
            total=None, sock_connect=self._patience.connect, sock_read=silence
        )

    def in_words(self, hop: Hop, error: Exception) -> PronkError:
        """What it means for people that one of `FAULTS` happened there."""
        host, there = hop.host, f"cannot connect to {hop.host}"
        match error:
            case aiohttp.ClientConnectorCertificateError():
                reason = _reason(error.certificate_error)
                return CertificateUnknown(
                    f"the certificate of {host} cannot be verified{reason}; name its authority in "
                    "SSL_CERT_FILE on the server, or pull and push with `insecure`"
                )
            case aiohttp.ClientConnectorDNSError(os_error=AddressRefused()):
                return failed(f"{host} leads to an address that models may not come from")
            case aiohttp.ClientConnectorDNSError():
                return unresolved(host, error.os_error)
            case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
                return ConnectionBroken(f"{there}: the proxy did not connect; see HTTPS_PROXY")
            case aiohttp.ClientConnectorSSLError() | ssl.SSLError():
                return NoTls(
                    f"{host} does not speak TLS as it should; if it speaks plain HTTP, pull and "
                    "push with `insecure`"
                )
            case aiohttp.ClientConnectorError() if error.os_error.errno:
                return ConnectionBroken(f"{there}: {os.strerror(error.os_error.errno)}")
            case aiohttp.ConnectionTimeoutError():
                return ConnectionBroken(f"{there} within {self._patience.connect:g} seconds")
            case TimeoutError():
                return ConnectionBroken(f"{host} fell silent")
            case aiohttp.ClientResponseError() | aiohttp.InvalidURL() | ValueError():
                return failed(f"{host} does not answer as an HTTP server should")
            case _:
                return ConnectionBroken(f"the connection to {host} broke")


def unresolved(host: str, error: OSError) -> PronkError:
    """What it means that a host's name could not be resolved."""
    if error.errno == socket.EAI_AGAIN or isinstance(error, TimeoutError):
        return ConnectionBroken(f"the name {host} could not be resolved just now")
    return failed(f"there is no host {host}: its name cannot be resolved")


def _reason(error: Exception) -> str:
    said = getattr(error, "verify_message", "")
    return f" ({printable(said)})" if isinstance(said, str) and said else ""


def _user_agent() -> str:
    return f"pronk/{metadata.version('pronk')} ({sys.platform} {os.uname().machine})"
