"""Long texts in parts that any tokenizer survives.

llama.cpp first takes the control tokens out of a text, by a list that it walks from the start for
every one that it finds: a million of them take hours. So a long text goes in portions, each of
which begins where a control token does, or if need be a line: there nothing changes by it.

Before byte pairs are merged, a regular expression cuts the text into words. llama.cpp runs most of
these expressions through C++'s `std::regex`, which recurses for every character of a match: some
30,000 letters, digits, spaces or signs in a row overflow a stack of 8 MiB and end the process.
Ordinary text has a boundary every few characters, at which no match goes on; where none comes for
`LONGEST` bytes, the text is cut, and what follows is tokenized by itself.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np

LONGEST = 4096
"""Bytes in a row without a boundary that are handed to a tokenizer."""

PORTION = 16 * 1024
"""Bytes that are searched for control tokens together, about."""

_SEARCHED = 1024
"""Bytes before a cut that are searched for a place where it changes nothing."""


def portions(text: bytes, control: re.Pattern[bytes] | None, *, lines: bool) -> list[bytes]:
    """The text in parts of about `PORTION` bytes, each but the first beginning with a match of
    `control`. Where none comes, parts begin at a line's beginning if `lines` allows it, or else are
    as long as they have to be.
    """
    cuts = [0]
    while len(text) - (at := cuts[-1]) > PORTION:
        nearest, farthest = at + PORTION // 2, at + PORTION
        found = control.search(text, nearest, farthest) if control else None
        if found is None and lines and (line := text.rfind(b"\n", nearest, farthest)) >= 0:
            cuts.append(line + 1)
            continue
        if found is None and control:
            found = control.search(text, farthest)
        if found is None:
            break
        cuts.append(found.start())
    cuts.append(len(text))
    return [text[start:end] for start, end in pairwise(cuts)]


def survivable(text: bytes) -> list[bytes]:
    """The parts of a text in UTF-8: joined they are the text, and nearly always it is one part."""
    if len(text) <= LONGEST:
        return [text]
    ends = np.append(_boundaries(text), len(text))
    begins = np.append(0, ends[:-1])
    cuts = [0]
    for index in np.flatnonzero(ends - begins > LONGEST):
        at, end = int(begins[index]), int(ends[index])
        while end - at > LONGEST:
            at = _cut(text, at + LONGEST)
            cuts.append(at)
    cuts.append(len(text))
    return [text[start:end] for start, end in pairwise(cuts)]


def _boundaries(text: bytes) -> np.ndarray[Any, Any]:
    """Where white space meets something printable, both ASCII: every tokenizer sees the same."""
    data = np.frombuffer(text, np.uint8)
    space = (data == 0x20) | ((data >= 0x09) & (data <= 0x0D))
    printable = (data > 0x20) & (data < 0x7F)
    meets = (space[:-1] & printable[1:]) | (printable[:-1] & space[1:])
    return np.flatnonzero(meets) + 1


def _cut(text: bytes, latest: int) -> int:
    """Where to cut, at `latest` or before: behind a line's end, in front of what may be a control
    token, or else anywhere between two characters.
    """
    earliest = latest - _SEARCHED
    if (line := text.rfind(b"\n", earliest, latest)) >= 0:
        return line + 1
    control = max(text.rfind(sign, earliest + 1, latest) for sign in (b"<", b"["))
    if control >= 0:
        return control
    while text[latest] & 0xC0 == 0x80:
        latest -= 1
    return latest
