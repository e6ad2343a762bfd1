"""`eq`, `lt` and their kin: what Go compares, and what it refuses to."""

from __future__ import annotations

from typing import Any

from .errors import Fault
from .literals import to_bytes
from .running import Run
from .values import LISTS, NO_VALUE, Slice, Struct, type_name


def equal(run: Run, first: Any, others: list[Any]) -> bool:
    """Whether a value equals one of the others. Raises `Fault` where types cannot be compared."""
    if not others:
        raise Fault("there is nothing to compare with")
    if type(first) is str and len(first) < 1000 and len(others) == 1 and type(others[0]) is str:
        return first == others[0]
    return any(_same(run, first, other) for other in others)


def less(run: Run, first: Any, second: Any) -> bool:
    """Whether a value comes before another. Raises `Fault` where there is no order."""
    if type(first) is int and type(second) is int:
        return first < second
    kind = _kind(first)
    if kind is None or _kind(second) is None:
        raise Fault(f"{type_name(first)} and {type_name(second)} have no order")
    if kind is not _kind(second):
        raise _unlike(first, second)
    if kind is bool:
        raise Fault("truth values have no order")
    return _text_less(run, first, second) if kind is str else first < second


def _text_less(run: Run, first: Any, second: Any) -> bool:
    run.take((len(first) + len(second)) >> 10)
    if first.isascii() and second.isascii():
        return first < second
    return to_bytes(first) < to_bytes(second)


def _same(run: Run, first: Any, second: Any) -> bool:
    kind, other = _kind(first), _kind(second)
    if kind is not other:
        if _is_none(first) or _is_none(second):
            return False
        raise _unlike(first, second)
    if kind is str:
        run.take(min(len(first), len(second)) >> 10)
    if kind is not None:
        return first == second
    if _is_nil(first) or _is_nil(second):
        if not _is_none(first) and not _is_none(second) and _form(first) is not _form(second):
            raise _unlike(first, second)
        return _is_nil(first) and _is_nil(second)
    if isinstance(first, Struct) and isinstance(second, Struct) and first.is_pointer:
        return first is second
    raise _unlike(first, second)


def _kind(value: Any) -> type | None:
    """The kind of what has a natural equality, else None."""
    match value:
        case str():
            return str
        case bool():
            return bool
        case int():
            return int
        case float():
            return float
        case _:
            return None


def _form(value: Any) -> type:
    return list if isinstance(value, LISTS) else dict if isinstance(value, dict) else Struct


def _is_none(value: Any) -> bool:
    return value is None or value is NO_VALUE


def _is_nil(value: Any) -> bool:
    return _is_none(value) or (isinstance(value, Slice) and not value)


def _unlike(first: Any, second: Any) -> Fault:
    return Fault(f"{type_name(first)} cannot be compared with {type_name(second)}")
