"""Go's literals: strings, characters and numbers, from how they are written to their values.

A Go string is bytes. Here it is a `str` in which a byte that is no UTF-8 is a lone surrogate, as
`surrogateescape` has it.
"""

from __future__ import annotations

import re

from .errors import Fault

_SIMPLE = {
    "a": 7,
    "b": 8,
    "f": 12,
    "n": 10,
    "r": 13,
    "t": 9,
    "v": 11,
    "\\": 92,
}
_ESCAPE = re.compile(
    r"""\\(?:([abfnrtv\\'"])|([0-7]{3})|x([0-9a-fA-F]{2})"""
    r"""|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))"""
)
_DIGITS = {
    2: re.compile(r"0[bB](_?[01])+"),
    8: re.compile(r"0[oO]?(_?[0-7])+"),
    16: re.compile(r"0[xX](_?[0-9a-fA-F])+"),
    10: re.compile(r"0|[1-9](_?[0-9])*"),
}
_DECIMAL_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_HEX_FLOAT = re.compile(
    r"[+-]?0[xX](_?[0-9a-fA-F]([0-9a-fA-F_]*)\.?[0-9a-fA-F_]*|\.[0-9a-fA-F_]+)[pP][+-]?[0-9]+"
)
_LARGEST_INT = 2**63 - 1


def to_bytes(text: str) -> bytes:
    """The bytes of a Go string."""
    return text.encode("utf-8", "surrogateescape")


def from_bytes(data: bytes) -> str:
    """The Go string of these bytes."""
    return data.decode("utf-8", "surrogateescape")


def unquoted(literal: str) -> str:
    """The string that `literal`, with its quotes, stands for. Raises `Fault`."""
    if literal[0] == "`":
        return literal[1:-1].replace("\r", "")
    body = literal[1:-1]
    if "\\" not in body:
        return body
    parts: list[bytes] = []
    at = 0
    while (next_ := body.find("\\", at)) >= 0:
        parts.append(to_bytes(body[at:next_]))
        piece, at, _ = _escape(body, next_, '"')
        parts.append(piece)
    parts.append(to_bytes(body[at:]))
    return from_bytes(b"".join(parts))


def character(literal: str) -> int:
    """The code point that `literal`, with its quotes, stands for. Raises `Fault`."""
    body = literal[1:-1]
    if body.startswith("\\"):
        _, end, value = _escape(body, 0, "'")
    else:
        end, value = 1, ord(body[0]) if body else 0
    if not body or end != len(body):
        raise Fault(f"{literal} is no character")
    return 0xFFFD if 0xDC80 <= value <= 0xDCFF else value


def _escape(body: str, at: int, quote: str) -> tuple[bytes, int, int]:
    """An escape's bytes, where it ends, and the number that it stands for."""
    found = _ESCAPE.match(body, at)
    if found is None or (found[1] in ("'", '"') and found[1] != quote):
        raise Fault(f"the escape {body[at : at + 2]} is none of Go's")
    simple, octal, hexadecimal, short, long = found.groups()
    if simple:
        value = _SIMPLE.get(simple, ord(simple))
    elif octal or hexadecimal:
        value = int(octal, 8) if octal else int(hexadecimal, 16)
        if value > 255:
            raise Fault(f"the escape {found[0]} is no byte")
        return bytes([value]), found.end(), value
    else:
        value = int(short or long, 16)
        if value > 0x10FFFF or 0xD800 <= value < 0xE000:
            raise Fault(f"the escape {found[0]} is no character")
    return chr(value).encode(), found.end(), value


def number(literal: str) -> int | float:
    """What a number stands for where nothing else gives its type. Raises `Fault`."""
    if literal.endswith("i") or literal[1:].count("i"):
        raise Fault(f"complex numbers such as {literal} are not supported")
    whole = _integer(literal)
    is_hex_integer = literal[:2] in ("0x", "0X") and not set("pP") & set(literal)
    if whole is not None and (is_hex_integer or not set(".eEpP") & set(literal)):
        if not -_LARGEST_INT - 1 <= whole <= _LARGEST_INT:
            raise Fault(f"{literal} is too large for an integer")
        return whole
    value = _float(literal)
    if value is None or not set(".eEpP") & set(literal):
        raise Fault(f"{literal} is no number")
    return value


def _integer(literal: str) -> int | None:
    sign = -1 if literal[0] == "-" else 1
    digits = literal.lstrip("+-")
    for base, form in _DIGITS.items():
        if form.fullmatch(digits):
            text = digits.replace("_", "")
            if base == 8:
                text = text.lstrip("0oO") or "0"
            if len(text) > 80:
                raise Fault("an integer has more than 80 digits")
            return sign * int(text, base if base != 2 else 0)
    return None


def _float(literal: str) -> float | None:
    try:
        if _DECIMAL_FLOAT.fullmatch(literal):
            value = float(literal)
        elif _HEX_FLOAT.fullmatch(literal):
            value = float.fromhex(literal.replace("_", ""))
        else:
            return None
    except OverflowError:
        return None
    return None if value in (float("inf"), float("-inf")) else value
