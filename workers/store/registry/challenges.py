"""What a registry asks for when it answers 401: the `WWW-Authenticate` header, read and no more."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

MAX_CHALLENGE = 8 * 1024
"""Characters of it that are looked at."""

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = re.compile(rf'({_TOKEN})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))')
_SCHEME = re.compile(rf"({_TOKEN})(?=\s|,|$)(?!\s*=)")
_BETWEEN = re.compile(r"[\s,]*")


@dataclass(frozen=True, slots=True)
class Challenge:
    """One way to prove who one is."""

    scheme: str
    """In lower case: `bearer`, `basic`, …"""
    parameters: dict[str, str] = field(default_factory=dict[str, str])


def parse_challenges(headers: Iterable[str]) -> list[Challenge]:
    """The challenges in all the headers of one answer, in their order, as far as they are ones."""
    found: list[Challenge] = []
    for header in headers:
        text, at = header[:MAX_CHALLENGE], 0
        while (at := _end(_BETWEEN.match(text, at), at)) < len(text):
            if parameter := _PARAMETER.match(text, at):
                if not found:
                    break
                quoted = parameter[2]
                value = parameter[3] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
                found[-1].parameters.setdefault(parameter[1].lower(), value)
                at = parameter.end()
            elif scheme := _SCHEME.match(text, at):
                found.append(Challenge(scheme[1].lower()))
                at = scheme.end()
            else:
                break
    return found


def _end(match: re.Match[str] | None, otherwise: int) -> int:
    return match.end() if match else otherwise
