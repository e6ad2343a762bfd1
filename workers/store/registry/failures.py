"""What goes wrong with a registry, in words for the person who asked for a model.

What a registry says is quoted only where it is a registry's own error, in printable characters and
not many of them. Nothing that was sent to it is ever quoted.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import Any, cast

import orjson

from ....protocol.errors import Code, PronkError

MAX_ERROR_BODY = 16 * 1024
"""Bytes of an error's body that are read."""
LONGEST_WAIT = 3600.0
"""Seconds; what a registry may ask us to wait, at most."""

_QUOTED = 200


class RegistryBusy(PronkError):
    """The registry wants to be asked again, after `retry_after` seconds where it says so."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(Code.REGISTRY_FAILED, message, retry_after=retry_after)


class ConnectionBroken(PronkError):
    """The connection could not be made, broke or fell silent; another one may do better."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.REGISTRY_FAILED, message)


class CertificateUnknown(PronkError):
    """The registry's certificate cannot be verified."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.REGISTRY_FAILED, message)


class NoTls(PronkError):
    """What answers there does not speak TLS."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.REGISTRY_FAILED, message)


def failed(message: str) -> PronkError:
    """An error that another try will not mend."""
    return PronkError(Code.REGISTRY_FAILED, message)


def printable(text: str, longest: int = _QUOTED) -> str:
    """`text` on one line that cannot change a terminal, cut to so many characters."""
    cut = text if len(text) <= longest else text[:longest] + "…"
    return "".join(mark if mark.isprintable() else "\N{REPLACEMENT CHARACTER}" for mark in cut)


def registry_says(body: bytes) -> str:
    """` (its own words)` where `body` is an error in a registry's form, else nothing."""
    try:
        value = orjson.loads(body)
    except ValueError:
        return ""
    match value:
        case {"errors": [{"code": str(code), "message": str(message)}, *_]}:
            said = f"{code}: {message}"
        case {"errors": [{"message": str(said)}, *_]} | {"errors": [{"code": str(said)}, *_]}:
            pass
        case {"error": str(said)}:
            pass
        case _:
            return ""
    return f" ({printable(said)})"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a `Retry-After` header asks to wait, in either of its two forms."""
    text = headers.get("Retry-After", "").strip()[:64]
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_WAIT)
    try:
        moment = parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, OSError, TypeError):
        return None
    return min(max(moment - time(), 0.0), LONGEST_WAIT)


def json_object(body: bytes) -> dict[str, Any] | None:
    """The JSON object that `body` is, or None."""
    try:
        value = orjson.loads(body)
    except ValueError:
        return None
    return cast(dict[str, Any], value) if isinstance(value, dict) else None
