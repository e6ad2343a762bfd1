"""What templates may call: Go's own functions, and those that Ollama adds.

Each gets the rendering, whose bounds it keeps, and its arguments; it raises `Fault`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote_plus

from . import comparing
from .errors import Fault
from .formatting import lined, printed
from .literals import from_bytes, to_bytes
from .marshal import marshalled
from .running import Run
from .values import LISTS, NO_VALUE, Byte, Map, Struct, Window, methods_of, type_name
from .verbs import formatted

_Arguments = list[Any]


@dataclass(frozen=True, slots=True)
class Function:
    """A function, and how many arguments it takes."""

    call: Callable[[Run, _Arguments], Any]
    least: int
    most: int | None
    """None: any number."""

    def takes(self, count: int) -> bool:
        """Whether it may be called with so many."""
        return count >= self.least and (self.most is None or count <= self.most)


# --- texts


def _print(run: Run, arguments: _Arguments) -> str:
    return printed(run, arguments)


def _println(run: Run, arguments: _Arguments) -> str:
    return lined(run, arguments)


def _printf(run: Run, arguments: _Arguments) -> str:
    form, *values = arguments
    return formatted(run, _text(form), values)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Fault(f"a string is needed, not {type_name(value)}")
    return value


_HTML = str.maketrans(
    {"\0": "\ufffd", '"': "&#34;", "'": "&#39;", "&": "&amp;", "<": "&lt;", ">": "&gt;"}
)
_JS = re.compile(r"[\\'\"<>&=\x00-\x1f\x80-\U0010ffff]")
_JS_SHORT = {"\\": "\\\\", "'": "\\'", '"': '\\"'}


def _html(run: Run, arguments: _Arguments) -> str:
    text = printed(run, arguments, dereferences=True)
    run.build(6 * len(text))
    return text.translate(_HTML)


def _js(run: Run, arguments: _Arguments) -> str:
    text = printed(run, arguments, dereferences=True)
    run.build(10 * len(text))
    return _JS.sub(_js_escape, text)


def _js_escape(found: re.Match[str]) -> str:
    letter = found[0]
    if letter in _JS_SHORT:
        return _JS_SHORT[letter]
    # A byte that is no UTF-8 counts as U+FFFD, which shows, and stays what it is.
    if "\udc80" <= letter <= "\udcff" or (letter >= "\x80" and letter.isprintable()):
        return letter
    return f"\\u{ord(letter):04X}"


def _urlquery(run: Run, arguments: _Arguments) -> str:
    text = printed(run, arguments, dereferences=True)
    run.build(12 * len(text))
    return quote_plus(to_bytes(text), safe="")


# --- collections


def _len(run: Run, arguments: _Arguments) -> int:
    (value,) = arguments
    if isinstance(value, str):
        if value.isascii():
            return len(value)
        run.take(len(value) >> 8)
        return len(to_bytes(value))
    if isinstance(value, (list, Window, dict)):
        return len(value)
    raise Fault(f"{type_name(value)} has no length")


def _index(run: Run, arguments: _Arguments) -> Any:
    value, *keys = arguments
    if value is None or value is NO_VALUE:
        raise Fault("nil has no entries")
    for key in keys:
        if value is None or value is NO_VALUE:
            raise Fault("nil has no entries")
        if isinstance(value, dict):
            if not isinstance(key, str):
                raise Fault(f"a map's key is a string, not {type_name(key)}")
            found = value.get(key, NO_VALUE)
            if found is NO_VALUE:
                found = value.zero() if isinstance(value, Map) else None
            value = found
        elif isinstance(value, LISTS):
            value = value[_place(key, len(value) - 1)]
        elif isinstance(value, str):
            run.take(len(value) >> 8)
            data = to_bytes(value)
            value = Byte(data[_place(key, len(data) - 1)])
        else:
            raise Fault(f"{type_name(value)} has no entries")
    return value


def _place(index: Any, most: int) -> int:
    if not isinstance(index, int) or isinstance(index, bool):
        raise Fault(f"an index is a number, not {type_name(index)}")
    if not 0 <= index <= most:
        raise Fault(f"index {int(index)} is out of range")
    return int(index)


def _slice(run: Run, arguments: _Arguments) -> Any:
    value, *bounds = arguments
    if isinstance(value, str):
        if len(bounds) == 3:
            raise Fault("a string takes two bounds at most")
        run.build(len(value))
        data = to_bytes(value)
        start, end, _ = _bounds(bounds, len(data), len(data))
        return from_bytes(data[start:end])
    if not isinstance(value, LISTS):
        raise Fault(f"{type_name(value)} cannot be sliced")
    window = Window.on(value)
    return window.part(*_bounds(bounds, len(window), window.capacity))


def _bounds(bounds: _Arguments, length: int, capacity: int) -> tuple[int, int, int]:
    """Where a slice begins, ends, and may be extended to."""
    places = [_place(bound, capacity) for bound in bounds]
    start, end, most = (*places, *(0, length, capacity)[len(places) :])
    if not start <= end <= most:
        raise Fault("the bounds of a slice are in the wrong order")
    return start, end, most


# --- logic


def _decided_elsewhere(run: Run, arguments: _Arguments) -> Any:
    """`and` and `or` do not evaluate all arguments, so the compiler has them."""
    raise AssertionError


def _not(run: Run, arguments: _Arguments) -> bool:
    return not arguments[0]


def _eq(run: Run, arguments: _Arguments) -> bool:
    first, *others = arguments
    return comparing.equal(run, first, others)


def _ne(run: Run, arguments: _Arguments) -> bool:
    return not _eq(run, arguments)


def _lt(run: Run, arguments: _Arguments) -> bool:
    return comparing.less(run, *arguments)


def _le(run: Run, arguments: _Arguments) -> bool:
    return comparing.less(run, *arguments) or _eq(run, arguments)


def _gt(run: Run, arguments: _Arguments) -> bool:
    return not _le(run, arguments)


def _ge(run: Run, arguments: _Arguments) -> bool:
    return not _lt(run, arguments)


# --- Ollama's


def _json(run: Run, arguments: _Arguments) -> str:
    text = marshalled(arguments[0])
    run.build(len(text))
    return text


def _current_date(run: Run, arguments: _Arguments) -> str:
    return _date(arguments, timedelta())


def _yesterday_date(run: Run, arguments: _Arguments) -> str:
    return _date(arguments, timedelta(days=1))


def _date(arguments: _Arguments, ago: timedelta) -> str:
    for form in arguments:  # Ollama takes formats, and heeds none
        _text(form)
    return f"{datetime.now() - ago:%Y-%m-%d}"


def _to_typescript_type(run: Run, arguments: _Arguments) -> str:
    (value,) = arguments
    method = methods_of(value).get("ToTypeScriptType") if isinstance(value, Struct) else None
    return method(value) if method else "any"


FUNCTIONS: Mapping[str, Function] = {
    "and": Function(_decided_elsewhere, 1, None),
    "or": Function(_decided_elsewhere, 1, None),
    "not": Function(_not, 1, 1),
    "eq": Function(_eq, 1, None),
    "ne": Function(_ne, 2, 2),
    "lt": Function(_lt, 2, 2),
    "le": Function(_le, 2, 2),
    "gt": Function(_gt, 2, 2),
    "ge": Function(_ge, 2, 2),
    "len": Function(_len, 1, 1),
    "index": Function(_index, 1, None),
    "slice": Function(_slice, 1, 4),
    "print": Function(_print, 0, None),
    "printf": Function(_printf, 1, None),
    "println": Function(_println, 0, None),
    "html": Function(_html, 0, None),
    "js": Function(_js, 0, None),
    "urlquery": Function(_urlquery, 0, None),
    "json": Function(_json, 1, 1),
    "currentDate": Function(_current_date, 0, None),
    "yesterdayDate": Function(_yesterday_date, 0, None),
    "toTypeScriptType": Function(_to_typescript_type, 1, 1),
}
