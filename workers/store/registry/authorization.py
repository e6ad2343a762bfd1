"""Who we are, for a registry that asks.

A registry answers 401 and says how to prove it: with a name and a password (Basic), or with a token
that a token server (its `realm`) gives to whoever shows them there (Bearer). A token server is
another host as often as not, and a hostile registry may name any. So what belongs to a registry is
shown to that registry itself and to the one other host that the operator's settings name as its
`realm`; to everybody else we are nobody. A token that was given to nobody is as good as none, and
one that was given to us goes to the registry that it is for, never along with a redirect.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

from ....protocol.errors import PronkError
from ....protocol.registries import RegistryAccess
from .challenges import Challenge, parse_challenges
from .credentials import Credentials, how_to_be_let_in
from .failures import (
    MAX_ERROR_BODY,
    RegistryBusy,
    failed,
    json_object,
    printable,
    registry_says,
    retry_after,
)
from .routes import Site, follow, location
from .transport import Hop, Transport, authority

MAX_TOKEN_ANSWER = 64 * 1024
_MAX_TOKEN = 16 * 1024
_MAX_SCOPE = 2048
_USUAL_SECONDS = 60.0
"""How long a token is good where its server does not say."""
_LONGEST_SECONDS = 3600.0
_MARGIN_SECONDS = 5.0
_MAX_KEPT = 1024
_TOKEN = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Scope:
    """What is asked for: `repository:library/llama3:pull`."""

    repository: str
    push: bool = False

    def __str__(self) -> str:
        return f"repository:{self.repository}:{'pull,push' if self.push else 'pull'}"


_Key = tuple[str, bool, Scope]
"""What was proved over TLS is for TLS: the registry's address, and whether it was verified."""


@dataclass(slots=True)
class _Grant:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    header: str | None = None
    until: float = 0.0


class Authorizer:
    """Finds the `Authorization` that a registry wants, and keeps it. Lives on one event loop."""

    def __init__(self, credentials: Credentials, transport: Transport) -> None:
        self._credentials = credentials
        self._transport = transport
        self._grants: dict[_Key, _Grant] = {}

    def known(self, site: Site, scope: Scope) -> str | None:
        """What the registry accepted before and may still do."""
        grant = self._grants.get(_key(site, scope))
        return grant.header if grant and monotonic() < grant.until else None

    def has_expired(self, site: Site, scope: Scope) -> bool:
        """Whether the registry wanted to know who we are, and wants to again."""
        grant = self._grants.get(_key(site, scope))
        return bool(grant and grant.header and monotonic() >= grant.until)

    async def answer(
        self, hop: Hop, site: Site, scope: Scope, asked: Sequence[str], refused: str | None
    ) -> str:
        """The `Authorization` for a registry that answered 401 with these `WWW-Authenticate`.

        `refused` is what it was sent. Raises `PronkError` where there is nothing else to send.
        """
        if len(self._grants) >= _MAX_KEPT:
            self._grants.clear()
        grant = self._grants.setdefault(_key(site, scope), _Grant())
        async with grant.lock:
            if grant.header and grant.header != refused and monotonic() < grant.until:
                return grant.header  # another request has just found it
            access = await self._credentials.of(site.host)
            header, seconds = await self._find(hop, site, scope, parse_challenges(asked), access)
            if header == refused:
                raise _denied(site, access)
            grant.header, grant.until = header, monotonic() + seconds
            return header

    async def _find(
        self, hop: Hop, site: Site, scope: Scope, asked: list[Challenge], access: RegistryAccess
    ) -> tuple[str, float]:
        ways = {challenge.scheme: challenge for challenge in reversed(asked)}
        shown = hop.secure or access.insecure
        if access.token and shown and ("bearer" in ways or "basic" not in ways):
            return f"Bearer {access.token.get_secret_value()}", _LONGEST_SECONDS
        if "bearer" in ways and _is_url(ways["bearer"].parameters.get("realm", "")):
            return await self._token(site, scope, ways["bearer"].parameters, access)
        if not shown and (access.username or access.token):
            raise _exposed(site)
        if "basic" in ways and access.username:
            return _basic(access), _LONGEST_SECONDS
        raise _denied(site, access)

    async def _token(
        self, site: Site, scope: Scope, asked: dict[str, str], access: RegistryAccess
    ) -> tuple[str, float]:
        url = location(asked["realm"], site.url)
        hop = await follow(site, url, site.url, realm=True)
        if url.scheme != "https" and url.host != site.url.host:
            raise failed(f"the token server of {site.host} does not speak https")
        ours = hop.own or authority(url) == access.realm
        headers: dict[str, str] = {}
        if access.username and ours:
            if not (hop.secure or access.insecure):
                raise _exposed(site)
            headers["Authorization"] = _basic(access)
        scopes = asked.get("scope", str(scope))[:_MAX_SCOPE].split()
        if scope.push and str(scope) not in scopes:
            # A question about an upload wants less than the upload will.
            scopes.append(str(scope))
        query = [("scope", each) for each in scopes]
        if "service" in asked:
            query.append(("service", asked["service"][:_MAX_SCOPE]))
        asking = Hop(url.extend_query(query), hop.reach, hop.verify, hop.proxy, hop.own)
        async with self._transport.send("GET", asking, headers) as response:
            most = MAX_TOKEN_ANSWER if response.status == 200 else MAX_ERROR_BODY
            body = await self._transport.read(response, asking, most)
            status, wait = response.status, retry_after(response.headers)
        if status in (408, 429) or status >= 500:
            raise RegistryBusy(f"{asking.host} answered {status}{registry_says(body)}", wait)
        if status in (400, 401, 403, 404):
            raise _denied(site, access, None if ours else authority(url), registry_says(body))
        return _given(asking, status, body)


def _key(site: Site, scope: Scope) -> _Key:
    return str(site.url), site.verify, scope


def _is_url(realm: str) -> bool:
    # Hugging Face has words there, and no token server.
    return realm.lower().startswith(("https:", "http:"))


def _given(hop: Hop, status: int, body: bytes) -> tuple[str, float]:
    """The header and its seconds, of what a token server answered."""
    answer = json_object(body) if status == 200 else None
    if answer is None:
        raise failed(f"{hop.host} is named as a token server, but does not answer as one")
    token = answer.get("token") or answer.get("access_token")
    if not isinstance(token, str) or len(token) > _MAX_TOKEN or not _TOKEN.fullmatch(token):
        raise failed(f"{hop.host} gave a token that is none")
    seconds = answer.get("expires_in")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        seconds = _USUAL_SECONDS
    return f"Bearer {token}", min(float(seconds), _LONGEST_SECONDS) - _MARGIN_SECONDS


def _basic(access: RegistryAccess) -> str:
    assert access.username is not None
    assert access.password is not None
    pair = f"{access.username}:{access.password.get_secret_value()}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _denied(
    site: Site, access: RegistryAccess, elsewhere: str | None = None, says: str = ""
) -> PronkError:
    table = f'[registry."{site.host}"]'
    if not access.username and not access.token:
        advice = f"Pronk has no credentials for it: {how_to_be_let_in(site.host)}"
    elif elsewhere and access.username:
        advice = (
            f"it has a token server on another host, {printable(elsewhere, 100)}; if that host may "
            f'see your password, add realm = "{printable(elsewhere, 100)}" under {table}'
        )
    else:
        advice = f"it does not accept the credentials that Pronk has for it, under {table}"
    return failed(f"{site.host} does not let Pronk in{says}: {advice}")


def _exposed(site: Site) -> PronkError:
    return failed(
        f"{site.host} wants credentials over a connection that others can read; give it a "
        f'certificate, or write insecure = true under [registry."{site.host}"] in the settings'
    )
