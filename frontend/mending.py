"""JSON whose text is not quite Unicode, made whole.

Clients that cut a text in the middle of a character send half a surrogate pair, or bytes that are
no UTF-8. Both become U+FFFD, as they do in Ollama. What has thousands of such
escapes is no such text, and mending it would hold up everybody else.
"""

from __future__ import annotations

import re

MOST_PLACES = 10_000
"""Escapes of surrogates that are looked at."""

_BACKSLASH = ord("\\")

# It begins with plain bytes: those are found without trying every escape in the text.
_SURROGATE = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})?|[c-fC-F][0-9a-fA-F]{2})"
)
_PAIR_LENGTH = 12


def mended(body: bytes) -> bytes | None:
    """The body in valid UTF-8, with no escape that names half a pair; None if that is hopeless."""
    body = body.decode("utf-8", "replace").encode()
    parts: list[bytes] = []
    done = 0
    for count, found in enumerate(_SURROGATE.finditer(body)):
        if count == MOST_PLACES:
            return None
        if len(found[0]) < _PAIR_LENGTH and not _escaped(body, found.start()):
            parts += (body[done : found.start()], rb"\ufffd")
            done = found.end()
    return b"".join([*parts, body[done:]])


def _escaped(body: bytes, at: int) -> bool:
    """Whether the backslash at this place belongs to one before it."""
    first = at
    while first and body[first - 1] == _BACKSLASH:
        first -= 1
    return (at - first) % 2 == 1
