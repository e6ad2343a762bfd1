"""Numbers, sizes, times and tables in the words of Ollama's own command."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

_SIZES = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3))
_NUMBERS = (("B", 10**9, 1), ("M", 10**6, 2), ("K", 10**3, 0))

_FOREVER_YEARS = 20

_GAP = 4


def size(count: int) -> str:
    """Bytes in decimal units: `4.7 GB`, `92 KB`, `17 B`."""
    for unit, factor in _SIZES:
        if count >= factor:
            value = count / factor
            if value >= 10 or value == int(value):
                return f"{int(value)} {unit}"
            return f"{int(value * 10) / 10:.1f} {unit}"
    return f"{count} B"


def number(count: int) -> str:
    """A large number, such as that of parameters: `8.0B`, `137.03M`, `12K`."""
    for unit, factor, digits in _NUMBERS:
        if count >= factor:
            return f"{count / factor:.{0 if count % factor == 0 else digits}f}{unit}"
    return str(count)


def age(then: datetime | None, now: datetime | None = None) -> str:
    """How far away a moment is: `3 days ago`, `4 minutes from now`, `Forever`."""
    if then is None:
        return "Never"
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    seconds = ((now or datetime.now(UTC)) - then).total_seconds()
    if seconds < -_FOREVER_YEARS * 365 * 24 * 3600:
        return "Forever"
    return f"{span(-seconds)} from now" if seconds < 0 else f"{span(seconds)} ago"


def span(seconds: float) -> str:
    """A length of time, as roughly as a person would say it."""
    whole = int(seconds)
    minutes, hours = whole // 60, round(seconds / 3600)
    days = hours // 24
    steps = (
        (whole < 1, "Less than a second"),
        (whole == 1, "1 second"),
        (whole < 60, f"{whole} seconds"),
        (minutes == 1, "About a minute"),
        (minutes < 60, f"{minutes} minutes"),
        (hours == 1, "About an hour"),
        (hours < 48, f"{hours} hours"),
        (days < 14, f"{days} days"),
        (days < 60, f"{days // 7} weeks"),
        (days < 730, f"{days // 30} months"),
    )
    return next((words for holds, words in steps if holds), f"{days // 365} years")


def duration(nanoseconds: int) -> str:
    """A measured time as Go writes it: `1.5s`, `12.34ms`, `1m2.5s`, `1h0m3s`."""
    if nanoseconds < 0:
        return "-" + duration(-nanoseconds)
    for unit, factor in (("ns", 1), ("µs", 10**3), ("ms", 10**6)):
        if nanoseconds < factor * 1000:
            return f"{_exact(nanoseconds, factor)}{unit}" if nanoseconds else "0s"
    minutes, rest = divmod(nanoseconds, 60 * 10**9)
    seconds = f"{_exact(rest, 10**9)}s"
    if not minutes:
        return seconds
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}" if hours else f"{minutes}m{seconds}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines with their columns one below the other."""
    return "\n".join(aligned([head, *rows]))


def aligned(rows: Sequence[Sequence[str]], margin: int = 0) -> list[str]:
    """Rows of the same number of cells, each column as wide as its widest cell."""
    widths = [max(map(len, column)) + _GAP for column in zip(*rows, strict=True)]
    return [
        " " * margin
        + "".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _exact(count: int, factor: int) -> str:
    whole, rest = divmod(count, factor)
    digits = len(str(factor)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip(".") if rest else str(whole)
