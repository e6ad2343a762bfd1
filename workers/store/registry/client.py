"""The client of model registries: names become addresses, addresses become manifests and blobs.

Where a registry may send us is in `routes`; what it is told about who we are, in `authorization`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import aiohttp

from ....protocol.errors import Code, PronkError
from ....protocol.names import ModelName
from ....protocol.registries import canonical_host
from ....protocol.settings import Settings
from .authorization import Authorizer, Scope
from .blobs import BlobStream, blob_stream
from .credentials import Credentials, how_to_be_let_in
from .failures import (
    MAX_ERROR_BODY,
    CertificateUnknown,
    ConnectionBroken,
    NoTls,
    RegistryBusy,
    failed,
    registry_says,
    retry_after,
)
from .manifests import ACCEPTED, MAX_MANIFEST
from .routes import Site, base_url, follow, location, place
from .transport import Hop, Patience, Transport
from .uploading import Upload

T = TypeVar("T")

MAX_REDIRECTS = 10
MAX_ASKED = 3
"""How often one question is sent to a registry that wants to know who asks: without, with what was
known, and with what it wants now."""

_REDIRECTS = (301, 302, 303, 307, 308)
_AGAIN = (408, 425, 429)
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


class Registry:
    """All registries. One per process, on its event loop."""

    def __init__(
        self,
        settings: Settings,
        patience: Patience | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.patience = patience or Patience()
        self._credentials = credentials or Credentials(settings.registries)
        self._transport = Transport(self.patience)
        self._authorizer = Authorizer(self._credentials, self._transport)

    async def close(self) -> None:
        """Ends all connections."""
        self._credentials.close()
        await self._transport.close()

    def repository(self, name: ModelName, *, insecure: bool) -> Repository:
        """The model's place at its registry. Nothing is asked yet.

        With `insecure`, a certificate that cannot be verified will do, and where there is no TLS,
        plain HTTP.
        """
        return Repository(
            name,
            insecure=insecure,
            transport=self._transport,
            authorizer=self._authorizer,
            credentials=self._credentials,
            patience=self.patience,
        )


class Repository:
    """One model at its registry, for one change of the library. Lives on one event loop.

    All methods raise `PronkError`, in words for whoever asked for the model.
    """

    def __init__(
        self,
        name: ModelName,
        *,
        insecure: bool,
        transport: Transport,
        authorizer: Authorizer,
        credentials: Credentials,
        patience: Patience,
    ) -> None:
        self.path = f"{name.namespace}/{name.model}"
        self.patience = patience
        self.transport = transport
        self._name = name
        self._insecure = insecure
        self._authorizer = authorizer
        self._credentials = credentials
        self._found: Site | None = None
        self._finding = asyncio.Lock()

    async def manifest(self) -> bytes:
        """The manifest as it stands in the registry, of at most 1 MiB, with the digest that the
        registry gives it. NOT_FOUND where there is none.
        """
        return await self.persistently(self._manifest)

    async def blob_size(self, digest: str) -> int | None:
        """Bytes of a blob, 64 hexadecimal digits; None where the registry does not have it."""
        return await self.persistently(lambda: self._blob_size(digest))

    @contextlib.asynccontextmanager
    async def read_blob(
        self, digest: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[BlobStream]:
        """The bytes of a blob from `start` on, up to but without `end`.

        A registry may send all of it instead: see `BlobStream.ranged`. Asked once: `RegistryBusy`
        and `ConnectionBroken`, here and while it is read, are worth another try by who asks.
        """
        headers: dict[str, str] = {}
        if start or end is not None:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        async with self.asked("GET", f"blobs/sha256:{digest}", headers) as (response, hop):
            if response.status not in (200, 206):
                raise await self.refusal(response, hop, f"blob sha256:{digest[:12]}")
            yield blob_stream(response, hop, self.transport, start, end)

    async def put_manifest(self, content: bytes, media_type: str) -> None:
        """Makes the name stand for this manifest, whose blobs are all there."""
        await self.persistently(lambda: self._put_manifest(content, media_type))

    async def upload_blob(
        self,
        digest: str,
        path: Path,
        progress: Callable[[int], None],
        source: str | None = None,
    ) -> None:
        """Brings the content of a file there, whose digest is `digest`.

        `progress` is told how many of its bytes were sent, which may go back where a connection
        breaks. `source` is another repository of the same registry (`namespace/model`) that may
        have the blob already.
        """
        await Upload(self, digest, path, progress, source).run()

    @contextlib.asynccontextmanager
    async def asked(
        self, method: str, path: str, headers: Mapping[str, str]
    ) -> AsyncIterator[tuple[aiohttp.ClientResponse, Hop]]:
        """The answer to a question that changes nothing, from wherever the registry led."""
        site = await self.site()
        hop = site.hop(f"v2/{self.path}/{path}")
        for _ in range(MAX_REDIRECTS + 1):
            async with self.sent(method, hop, headers) as response:
                if response.status not in _REDIRECTS:
                    yield response, hop
                    return
                target = location(response.headers.get("Location", ""), hop.url)
            hop = await follow(site, target, hop.url)
        raise failed(f"{site.host} redirected more than {MAX_REDIRECTS} times")

    @contextlib.asynccontextmanager
    async def sent(
        self,
        method: str,
        hop: Hop,
        headers: Mapping[str, str],
        body: Callable[[], bytes | AsyncIterator[bytes]] | None = None,
        *,
        push: bool = False,
        slow: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to one request, after the registry knows who we are.

        `body` is called for each time that it is sent; `push` is what takes the right to write.
        """
        site = await self.site()
        scope = Scope(self.path, push)
        header = self._authorizer.known(site, scope) if hop.own else None
        for last in (False,) * (MAX_ASKED - 1) + (True,):
            given = {**headers, "Authorization": header} if header else headers
            async with self.transport.send(
                method, hop, given, body=body() if body else None, slow=slow
            ) as response:
                if response.status != 401 or not hop.own or last:
                    yield response
                    return
                asked = response.headers.getall("WWW-Authenticate", ())
            header = await self._authorizer.answer(hop, site, scope, asked, header)

    async def wants_to_know_us(self) -> bool:
        """Whether a push will be asked who we are, as far as can be told."""
        return self._authorizer.has_expired(await self.site(), Scope(self.path, push=True))

    async def site(self) -> Site:
        """The registry, as it was found when it was first asked for."""
        async with self._finding:
            if self._found is None:
                self._found = await self._find()
            return self._found

    async def refusal(self, response: aiohttp.ClientResponse, hop: Hop, what: str) -> PronkError:
        """What it means that the registry did not answer with `what` it was asked for."""
        status, wait = response.status, retry_after(response.headers)
        try:
            says = registry_says(await self.transport.read(response, hop, MAX_ERROR_BODY))
        except PronkError:
            says = ""
        if status in _AGAIN or status >= 500:
            return RegistryBusy(f"{hop.host} answered {status} for the {what}{says}", wait)
        if status == 404:
            return failed(f"{hop.host} does not have the {what}{says}")
        if status in (401, 403) and hop.own:
            return failed(
                f"{hop.host} does not allow Pronk to use the {what}{says}: "
                f"{how_to_be_let_in(hop.host)}"
            )
        if status in (401, 403):
            return failed(
                f"{hop.host}, where the registry led, does not allow Pronk to use the {what}{says}"
            )
        return failed(f"{hop.host} answered {status} for the {what}{says}")

    async def persistently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Asks a few times, with pauses, as long as another try makes sense."""
        pause = self.patience.pause
        for attempt in range(1, self.patience.attempts + 1):
            try:
                return await ask()
            except (RegistryBusy, ConnectionBroken) as error:
                wait = max(pause, error.retry_after or 0.0)
                if attempt == self.patience.attempts or wait > self.patience.longest_pause:
                    raise
            await asyncio.sleep(wait)
            pause *= 2
        raise AssertionError("there is at least one attempt")

    async def _find(self) -> Site:
        host = canonical_host(str(base_url(self._name.host, "https").authority))
        access = self._credentials.settings_of(host)
        secure = await place(Site(host, base_url(self._name.host, "https"), access))
        if not self._insecure:
            return secure
        try:
            return await self._answering(secure)
        except CertificateUnknown:
            unverified = Site(host, secure.url, access, False, secure.reach, secure.proxy)
            return await self._answering(unverified)
        except (NoTls, ConnectionBroken):
            plain = await place(Site(host, base_url(self._name.host, "http"), access))
            return await self._answering(plain)

    async def _answering(self, site: Site) -> Site:
        """The same, if anything answers there in this way."""
        async with self.transport.send("GET", site.hop("v2/"), {}):
            return site

    async def _manifest(self) -> bytes:
        path = f"manifests/{self._name.tag}"
        async with self.asked("GET", path, {"Accept": ACCEPTED}) as (response, hop):
            if response.status == 404:
                raise PronkError(Code.NOT_FOUND, "pull model manifest: file does not exist")
            if response.status != 200:
                raise await self.refusal(response, hop, "manifest")
            content = await self.transport.read(response, hop, MAX_MANIFEST)
            given = response.headers.get("Docker-Content-Digest", "")
        digest = _DIGEST.fullmatch(given)
        if digest and digest[1] != hashlib.sha256(content).hexdigest():
            raise failed(f"{hop.host} sent a manifest that does not have the digest it gives")
        return content

    async def _put_manifest(self, content: bytes, media_type: str) -> None:
        hop = (await self.site()).hop(f"v2/{self.path}/manifests/{self._name.tag}")
        headers = {"Content-Type": media_type}
        async with self.sent("PUT", hop, headers, lambda: content, push=True) as response:
            if response.status not in (200, 201, 202, 204):
                raise await self.refusal(response, hop, "manifest")

    async def _blob_size(self, digest: str) -> int | None:
        what, path = f"blob sha256:{digest[:12]}", f"blobs/sha256:{digest}"
        hop = (await self.site()).hop(f"v2/{self.path}/{path}")
        async with self.sent("HEAD", hop, {}) as response:
            if response.status == 404:
                return None
            if response.status not in _REDIRECTS:
                if response.status != 200:
                    raise await self.refusal(response, hop, what)
                if response.content_length is not None:
                    return response.content_length
        # Where blobs lie in an object store, its signed addresses are good for GET alone. And a
        # registry should say how large a blob is without sending it, but need not.
        async with self.asked("GET", path, {"Range": "bytes=0-0"}) as (response, hop):
            if response.status == 404:
                return None
            if response.status == 416:  # it has no first byte
                return 0
            if response.status not in (200, 206):
                raise await self.refusal(response, hop, what)
            total = blob_stream(response, hop, self.transport, 0, 1).total
            if total is None:
                raise failed(f"{hop.host} does not say how large the {what} is")
            return total
