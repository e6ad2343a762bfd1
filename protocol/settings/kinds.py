"""Kinds of values that settings have, and how they are read from text."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AliasChoices, BeforeValidator, Field

from ..messages.placement import FlashAttention
from ..sizes import parse_size

DEFAULT_PORT = 11434


def either(ours: str, ollamas: str) -> AliasChoices:
    """The names under which a setting is looked up: ours first, then Ollama's, then the file's."""
    return AliasChoices(ours, ollamas, ours.removeprefix("PRONK_").lower())


def home() -> Path:
    """The user's home directory, or `/` for a user who has none, as in many a container."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def path(value: object) -> object:
    """A directory as an absolute path. Raises ValueError for what cannot be one."""
    if isinstance(value, dict):
        raise ValueError('is a directory; what belongs to one model stands in [model."its name"]')
    if not isinstance(value, (str, Path)):
        return value
    try:
        path = Path(value).expanduser().absolute()
    except RuntimeError:
        raise ValueError("there is no such user; write the path in full") from None
    try:
        str(path).encode()
    except UnicodeEncodeError:  # it goes into messages and configuration files
        raise ValueError("the path is not valid UTF-8") from None
    return path


def switch(value: object) -> object:
    """`on`, `off` or `auto` from these words, and from what Ollama takes for a truth value."""
    text = str(value).strip().lower()
    if text in ("1", "t", "true", "y", "yes"):
        return FlashAttention.ON
    return FlashAttention.OFF if text in ("0", "f", "false", "n", "no") else text


def lower(value: object) -> object:
    """A word, however it is written."""
    return value.strip().lower() if isinstance(value, str) else value


Directory = Annotated[Path, BeforeValidator(path)]
Size = Annotated[int, BeforeValidator(parse_size), Field(ge=1)]
SizeOrNone = Annotated[int, BeforeValidator(parse_size), Field(ge=0, le=2**60)]


def split_host(value: str) -> tuple[str, int]:
    """Address and port from every form that OLLAMA_HOST has: `host`, `:port`, `[::1]:port`, a URL.

    Raises ValueError when the port is no port or the address is empty of meaning.
    """
    text = value.strip().strip("'\"")
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    if scheme not in ("", "http"):
        raise ValueError(f"has the scheme {scheme!r}; only http is served")
    try:
        bare = ipaddress.ip_address(rest)
    except ValueError:
        parts = urlsplit("//" + rest)
        port = parts.port  # raises ValueError beyond 65535
        address = parts.hostname or "127.0.0.1"
    else:
        port, address = None, str(bare)
    if port is None:
        port = 80 if scheme else DEFAULT_PORT
    return address, port
