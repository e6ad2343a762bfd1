"""Values as text, the way Go's fmt package writes them: `print`, `println`, and plain actions.

What is written may hold all that a template was given, so everything counts against its bounds
before it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .errors import Fault
from .running import Run
from .values import LISTS, NO_VALUE, Struct, methods_of, type_name

_DEEPEST = 60
_ADDRESS = "0xc000000000"
"""What stands for the address of something that a pointer within a value points to."""


def shown(run: Run, value: Any) -> str:
    """What an action writes of its value."""
    if isinstance(value, str):
        return value
    if value is NO_VALUE or value is None:
        return "<no value>"
    # Here, and only here, a pointer prints as what it points to.
    return plain(run, value, dereferences=True)


def printed(run: Run, values: list[Any], *, dereferences: bool = False) -> str:
    """What `print` makes of its arguments: a space between two of which none is a text.

    `dereferences`: as the functions do that escape.
    """
    if dereferences:
        values = ["<no value>" if v is NO_VALUE or v is None else v for v in values]
    parts: list[str] = []
    for place, value in enumerate(values):
        if place and not isinstance(value, str) and not isinstance(values[place - 1], str):
            parts.append(" ")
        parts.append(plain(run, value, dereferences=dereferences))
    return joined(run, parts)


def lined(run: Run, values: list[Any]) -> str:
    """What `println` makes of its arguments: spaces between all, and an end of line."""
    return joined(run, [" ".join([plain(run, value) for value in values]), "\n"])


def joined(run: Run, parts: list[str]) -> str:
    """The parts as one text, which counts as built."""
    run.build(sum(map(len, parts)))
    return "".join(parts)


def plain(run: Run, value: Any, *, dereferences: bool = False) -> str:
    """A value in its usual form, `%v`."""

    def leaf(value: Any) -> str:
        text = _leaf(value)
        run.take(1)
        run.build(len(text) + 1)
        return text

    return "".join(nested(value, leaf, dereferences=dereferences))


def nested(
    value: Any,
    leaf: Callable[[Any], str],
    *,
    dereferences: bool = False,
    names: bool = False,
    stringers: bool = True,
    depth: int = 0,
) -> Iterable[str]:
    """The pieces of a value, its brackets and what `leaf` makes of all that has no parts.

    `names`: with the names of a struct's fields. `stringers`: what has a method `String` is a leaf,
    of what that returns.
    """
    if depth > _DEEPEST:
        raise Fault("a value is nested too deeply to be written")
    string = methods_of(value).get("String") if stringers else None

    def part(value: Any) -> Iterable[str]:
        return nested(value, leaf, names=names, stringers=stringers, depth=depth + 1)

    if string:
        yield leaf(string(value))
    elif isinstance(value, Struct):
        if value.is_pointer and depth:
            yield _ADDRESS
            return
        yield "&{" if value.is_pointer and not dereferences else "{"
        for place, (name, each) in enumerate(value.fields.items()):
            if place:
                yield " "
            if names:
                yield f"{name}:"
            yield from part(each)
        yield "}"
    elif isinstance(value, dict):
        yield "map["
        for place, key in enumerate(sorted(value)):
            if place:
                yield " "
            yield leaf(key)
            yield ":"
            yield from part(value[key])
        yield "]"
    elif isinstance(value, LISTS):
        yield "["
        for place, each in enumerate(value):
            if place:
                yield " "
            yield from part(each)
        yield "]"
    else:
        yield leaf(value)


def _leaf(value: Any) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(int(value))
        case float():
            return decimal(value)
        case None:
            return "<nil>"
        case _ if value is NO_VALUE:
            return "<nil>"
        case _:
            raise Fault(f"{type_name(value)} cannot be written")


def decimal(value: float) -> str:
    """A number as `%v` has it: as few digits as tell it from all others."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    sign, digits, exponent = shortest(value)
    if -4 <= exponent < 6:
        return sign + positional(digits, exponent)
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def shortest(value: float) -> tuple[str, str, int]:
    """Sign, digits without zeros at the end, and the exponent of ten of the first digit."""
    sign = "-" if str(value).startswith("-") else ""
    mantissa, _, power = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return sign, "0", 0
    leading = len(whole + fraction) - len(digits)
    exponent = int(power or 0) + len(whole) - leading - 1
    return sign, digits.rstrip("0"), exponent


def positional(digits: str, exponent: int) -> str:
    """Digits with the point in its place; the first stands for ten to the `exponent`."""
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    fraction = digits[exponent + 1 :]
    return f"{whole}.{fraction}" if fraction else whole
