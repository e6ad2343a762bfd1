"""Durations as people and Ollama's clients write them."""

from __future__ import annotations

import math
import re

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")
_LONGEST = 1000
"""Characters: a megabyte of "1m1m1m…" would be added up for seconds."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)")


def parse_duration(value: object) -> float:
    """Seconds from a number of seconds, or from text such as `"5m"`, `"1h30m"`, `"-1"`, `"0"`.

    Text follows Go's `time.ParseDuration`, as Ollama's does, and a bare number in text is seconds.
    Negative values mean "for ever" where the caller has such a thing; they come back as they are.

    Raises ValueError with a reason that completes the sentence "<name>=<value>: …".
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError('is not a duration; write seconds, or a text such as "5m"')
    try:
        seconds = _from_text(value.strip()) if isinstance(value, str) else float(value)
    except OverflowError:  # of an integer that a file may hold
        seconds = math.inf
    if not math.isfinite(seconds):
        raise ValueError("is not a finite duration")
    return seconds


def _from_text(text: str) -> float:
    if len(text) > _LONGEST:
        raise ValueError("is too long for a duration")
    if _NUMBER.fullmatch(text):
        return float(text)
    sign, body = (-1.0, text[1:]) if text.startswith("-") else (1.0, text.removeprefix("+"))
    seconds, end = 0.0, 0
    while match := _PART.match(body, end):
        seconds += float(match[1]) * _UNITS[match[2]]
        end = match.end()
    if end == 0 or end != len(body):
        raise ValueError('is not a duration; write seconds, or a text such as "5m" or "1h30m"')
    return sign * seconds
