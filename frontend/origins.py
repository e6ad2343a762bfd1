"""Which web pages may call the API, and under which names: CORS and DNS rebinding, as in Ollama.

A browser lets any page send requests to loopback. The `Origin` header tells which page it was; and
a page whose own name was pointed at this machine (DNS rebinding) betrays itself by its `Host`.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable

import psutil
from aiohttp import web

from .answers import Handler, error_response

_LOOPBACK = re.compile(r"https?://(localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])(:\d{1,5})?")
_APPS = re.compile(r"(app|file|tauri|vscode-webview|vscode-file)://.*")
_LOCAL_DOMAINS = (".localhost", ".local", ".internal")

_METHODS = "GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS"
_HEADERS = ", ".join(
    [
        "Authorization",
        "Content-Type",
        "User-Agent",
        "Accept",
        "X-Requested-With",
        *(
            f"X-Stainless-{name}"
            for name in (
                "Lang",
                "Package-Version",
                "Os",
                "Arch",
                "Retry-Count",
                "Runtime",
                "Runtime-Version",
                "Async",
                "Helper-Method",
                "Poll-Helper",
                "Custom-Poll-Interval",
                "Timeout",
            )
        ),
    ]
)


class Origins:
    """Who may call. `allowed` is the setting, `address` what the server listens on."""

    def __init__(self, allowed: str, address: str) -> None:
        patterns = [pattern.strip() for pattern in allowed.split(",") if pattern.strip()]
        self._everyone = "*" in patterns
        self._allowed = [
            re.compile(".*".join(map(re.escape, pattern.split("*"))), re.IGNORECASE)
            for pattern in patterns
        ]
        self._guards_hosts = _address_is(address, lambda ip: ip.is_loopback)
        self._own_name = socket.gethostname().lower()

    def allows_origin(self, origin: str, host: str) -> bool:
        """Whether a page of this origin may call; one that was served from here always may."""
        return (
            self._everyone
            or origin.lower() in (f"http://{host}".lower(), f"https://{host}".lower())
            or any(pattern.fullmatch(origin) for pattern in (_LOOPBACK, _APPS, *self._allowed))
        )

    def allows_host(self, host: str) -> bool:
        """Whether a request that calls us `host` can be meant for us.

        Beyond loopback a server has names that it cannot know, so that all are good there.
        """
        if not self._guards_hosts:
            return True
        name = _without_port(host).lower()
        return (
            name in ("", "localhost", self._own_name)
            or name.endswith(_LOCAL_DOMAINS)
            or _address_is(name, _is_local)
        )

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuses foreign hosts and origins, and answers preflights."""
        host = request.headers.get("Host", "")
        if not self.allows_host(host):
            return error_response("this server does not answer to that host name", 403)
        origin = request.headers.get("Origin", "")
        if origin and not self.allows_origin(origin, host):
            return error_response(
                "this origin may not call the server; its operator can allow it (PRONK_ORIGINS)",
                403,
            )
        if request.method == "OPTIONS":
            return web.Response(
                status=204,
                headers={
                    "Access-Control-Allow-Methods": _METHODS,
                    "Access-Control-Allow-Headers": _HEADERS,
                    "Access-Control-Max-Age": "43200",
                }
                if origin
                else None,
            )
        return await handler(request)

    async def mark(self, request: web.Request, response: web.StreamResponse) -> None:
        """Tells a browser that its page may read the answer. Runs before each response begins."""
        origin = request.headers.get("Origin", "")
        if not origin or not self.allows_origin(origin, request.headers.get("Host", "")):
            return
        response.headers["Access-Control-Allow-Origin"] = "*" if self._everyone else origin
        if not self._everyone:
            response.headers["Vary"] = "Origin"


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, _, port = host.rpartition(":")
    return name if name and ":" not in name and port.isdecimal() else host


Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _address_is(text: str, test: Callable[[Address], bool]) -> bool:
    try:
        return test(ipaddress.ip_address(text))
    except ValueError:
        return False


def _is_local(address: Address) -> bool:
    if address.is_loopback or address.is_private or address.is_unspecified:
        return True
    own = {
        entry.address.partition("%")[0]
        for entries in psutil.net_if_addrs().values()
        for entry in entries
    }
    return str(address) in own
