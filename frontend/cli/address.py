"""Where the server is that a command talks to."""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import urlsplit

from ...protocol.errors import Code, PronkError

_VARIABLES = ("PRONK_HOST", "OLLAMA_HOST")
_DEFAULT_PORT = 11434
_PORTS = {"": _DEFAULT_PORT, "http": 80, "https": 443}


def server_url(given: str | None = None) -> str:
    """The URL of the server, from `--host`, from the variables, or from the file of settings.

    Raises `PronkError` when what is given there is no address.
    """
    if given:
        return _checked("--host", given)
    for variable in _VARIABLES:
        if value := os.environ.get(variable):
            return _checked(variable, value)
    if os.environ.get("PRONK_CONFIG"):
        from ...protocol.settings import load_settings

        return url_of(load_settings().host)
    return url_of("")


def url_of(text: str) -> str:
    """A URL from every form that OLLAMA_HOST has: `host`, `:port`, `[::1]:port`, a URL.

    An address that means "every interface" to a server is loopback to its client. A path is kept,
    for a server behind a proxy. Raises ValueError with what is wrong.
    """
    text = text.strip().strip("'\"")
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    if scheme not in _PORTS:
        raise ValueError(f"has the scheme {scheme!r}; write http or https")
    try:
        parts = urlsplit(f"//[{ipaddress.IPv6Address(rest)}]")
    except ValueError:
        parts = urlsplit(f"//{rest}")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("is no address; write host:port, or http://host:port")
    try:
        port = parts.port or _PORTS[scheme]
    except ValueError:
        raise ValueError("has a port that is none; it is a number up to 65535") from None
    host = _reachable(parts.hostname or "127.0.0.1")
    return f"{scheme or 'http'}://{host}:{port}{parts.path.rstrip('/')}"


def is_local(url: str) -> bool:
    """Whether a URL is this machine's own loopback, where no proxy is asked."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _reachable(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if not host.isascii() or not host.replace("-", "").replace(".", "").replace("_", ""):
            raise ValueError("is no address; write host:port, or http://host:port") from None
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return host if address.version == 4 else f"[{host}]"


def _checked(name: str, value: str) -> str:
    try:
        return url_of(value)
    except ValueError as error:
        raise PronkError(Code.INVALID_REQUEST, f"{name}={value}: {error}") from None
