"""Sizes in bytes, as people write them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:(K|M|G|T)(iB|B)?|B)?", re.IGNORECASE)


def parse_size(value: object) -> object:
    """Bytes from `4096`, `"64MiB"`, `"8 GB"`: powers of 1000 with `KB`, `MB`, …, else of 1024.

    What is no text comes back as it is. Raises ValueError for text that is no size.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if not match:
        raise ValueError("is not a size; write bytes, or a number with KiB, MiB or GiB")
    number, unit, suffix = match.groups()
    base = 1000 if (suffix or "").upper() == "B" else 1024
    try:
        return int(float(number) * base ** ("BKMGT".index((unit or "B").upper())))
    except OverflowError:
        raise ValueError("is larger than any size can be") from None
