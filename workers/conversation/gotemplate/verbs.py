"""`printf`: Go's format strings.

Not supported are explicit argument indexes (`%[1]d`), numbers with a fraction in base 2 or 16, and
Go syntax (`%#v`) for what has parts. No template of Ollama's library has any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .errors import Fault
from .formatting import decimal, joined, nested, shortest
from .literals import to_bytes
from .running import Run
from .values import NO_VALUE, type_name

_WIDEST = 1_000_000
"""Go's own bound of widths and precisions."""
_MAX_PRECISION = 1000
"""Digits behind the point: no number has more that mean anything."""
_FLAGS = "#0+- "
_BASES = {"d": 10, "b": 2, "o": 8, "O": 8, "x": 16, "X": 16}
_QUOTED = {7: "a", 8: "b", 12: "f", 10: "n", 13: "r", 9: "t", 11: "v"}


@dataclass(slots=True)
class _Spec:
    """What stands between `%` and its verb."""

    flags: set[str]
    width: int | None = None
    precision: int | None = None


def formatted(run: Run, form: str, arguments: list[Any]) -> str:
    """What `printf` makes of a format and its arguments. Raises `Fault`.

    As in Go, what does not fit is said in the text: `%!d(string=hi)`, `%!s(MISSING)`.
    """
    return joined(run, _Formatter(run, form, arguments).pieces())


class _Formatter:
    def __init__(self, run: Run, form: str, arguments: list[Any]) -> None:
        self._run = run
        self._form = form
        self._at = 0
        self._arguments = arguments
        self._next = 0
        self._pieces: list[str] = []

    def pieces(self) -> list[str]:
        form = self._form
        while (percent := form.find("%", self._at)) >= 0:
            self._pieces.append(form[self._at : percent])
            self._at = percent + 1
            self._run.take(1)
            self._directive()
        self._pieces.append(form[self._at :])
        if self._next < len(self._arguments):
            self._extra()
        return self._pieces

    def _directive(self) -> None:
        form, spec = self._form, _Spec(set())
        while self._peek() and self._peek() in _FLAGS:
            spec.flags.add(self._peek())
            self._at += 1
        spec.width = self._size("WIDTH", spec)
        if self._peek() == "." and self._at + 1 < len(form):
            self._at += 1
            is_number = self._peek() != "*"
            spec.precision = self._size("PREC", spec)
            if spec.precision is None and is_number:
                spec.precision = 0
            elif spec.precision is not None and spec.precision < 0:
                spec.precision = None
        if self._peek() == "[":
            raise Fault("argument indexes are not supported")
        if self._at >= len(form):
            self._pieces.append("%!(NOVERB)")
            return
        verb = form[self._at]
        self._at += 1
        if verb == "%":
            self._pieces.append("%")
        elif self._next >= len(self._arguments):
            self._pieces.append(f"%!{verb}(MISSING)")
        else:
            value = self._arguments[self._next]
            self._next += 1
            self._pieces.append(_written(self._run, value, verb, spec))

    def _peek(self) -> str:
        return self._form[self._at : self._at + 1]

    def _size(self, what: str, spec: _Spec) -> int | None:
        """A width or precision: a number, or `*` for one of the arguments."""
        if self._peek() == "*":
            self._at += 1
            given: Any = None
            if self._next < len(self._arguments):
                given = self._arguments[self._next]
                self._next += 1
            is_number = isinstance(given, int) and not isinstance(given, bool)
            if not is_number or abs(given) > _WIDEST:
                self._pieces.append(f"%!(BAD{what})")
                return None
            if what == "WIDTH" and given < 0:
                spec.flags.add("-")
                return -given
            return int(given)
        begun = self._at
        while "0" <= self._peek() <= "9":
            self._at += 1
            if self._at - begun > 7:
                raise Fault("a width or precision is too large")
        digits = self._form[begun : self._at]
        if digits and int(digits) > _WIDEST:
            raise Fault("a width or precision is too large")
        return int(digits) if digits else None

    def _extra(self) -> None:
        extras = [
            "<nil>" if _is_nil(value) else f"{type_name(value)}={_usual(self._run, value)}"
            for value in self._arguments[self._next :]
        ]
        self._pieces.append(f"%!(EXTRA {', '.join(extras)})")


def _is_nil(value: Any) -> bool:
    return value is None or value is NO_VALUE


def _usual(run: Run, value: Any) -> str:
    return _written(run, value, "v", _Spec(set()))


def _written(run: Run, value: Any, verb: str, spec: _Spec) -> str:
    """One argument by one verb."""
    if verb == "T":
        return _padded(run, "<nil>" if _is_nil(value) else type_name(value), spec)
    if verb == "p":
        raise Fault("%p is not supported")
    if _is_nil(value):
        return _padded(run, "<nil>", spec) if verb == "v" else f"%!{verb}(<nil>)"
    names = verb == "v" and "+" in spec.flags
    syntax = verb == "v" and "#" in spec.flags
    if verb == "v":
        spec = _Spec(spec.flags - {"#", "+"}, spec.width, spec.precision)
    if syntax:
        if not isinstance(value, (str, int, float)):
            raise Fault(f"%#v of {type_name(value)} is not supported")
        verb = "q" if isinstance(value, str) else verb
    leaf = _leaf_writer(run, verb, spec)
    stringers = verb in "vsxXq"
    pieces = nested(value, leaf, names=names, stringers=stringers)
    return joined(run, list(pieces))


def _leaf_writer(run: Run, verb: str, spec: _Spec) -> Callable[[Any], str]:
    def write(value: Any) -> str:
        match value:
            case None:
                text = "<nil>"
            case str():
                text = _string(run, value, verb, spec)
            case bool():
                text = ("true" if value else "false") if verb in "tv" else None
                text = None if text is None else _padded(run, text, spec)
            case int():
                text = _integer(run, int(value), verb, spec)
            case float():
                text = _float(run, value, verb, spec)
            case _:
                raise Fault(f"{type_name(value)} cannot be written")
        if text is None:
            return f"%!{verb}({type_name(value)}={_leaf_writer(run, 'v', spec)(value)})"
        run.take(1)
        run.build(1)
        return text

    return write


def _padded(run: Run, text: str, spec: _Spec, *, zeros: bool = True) -> str:
    width = spec.width or 0
    run.build(max(width, len(text)))
    if len(text) >= width:
        return text
    if "-" in spec.flags:
        return text.ljust(width)
    return text.rjust(width, "0" if zeros and "0" in spec.flags else " ")


def _string(run: Run, text: str, verb: str, spec: _Spec) -> str | None:
    run.build(len(text))
    if verb in "xX":
        return _hexadecimal(run, text, verb, spec)
    if verb not in "vsq":
        return None
    if spec.precision is not None:
        text = text[: spec.precision]
    if verb == "q":
        run.build(10 * len(text))
        if "#" in spec.flags and _fits_backquotes(text):
            text = f"`{text}`"
        else:
            text = quoted(text, ascii_only="+" in spec.flags)
    return _padded(run, text, spec)


def _hexadecimal(run: Run, text: str, verb: str, spec: _Spec) -> str:
    data = to_bytes(text)
    if spec.precision is not None:
        data = data[: spec.precision]
    run.build(6 * len(data))
    prefix = "0" + verb if "#" in spec.flags and data else ""
    if " " in spec.flags:
        digits = " ".join(f"{prefix}{byte:02x}" for byte in data)
    else:
        digits = prefix + data.hex()
    return _padded(run, digits.upper() if verb == "X" else digits, spec)


def _integer(run: Run, value: int, verb: str, spec: _Spec) -> str | None:
    if verb == "c":
        return _padded(run, _character(value), spec)
    if verb == "q":
        text = "'" + quoted(_character(value), ascii_only="+" in spec.flags, mark="'")[1:-1] + "'"
        return _padded(run, text, spec)
    if verb == "U":
        value %= 2**64
        text = f"U+{value:0{max(spec.precision or 4, 4)}X}"
        run.build(len(text))
        if "#" in spec.flags and value <= 0x10FFFF and _prints(chr(value)):
            text += f" '{chr(value)}'"
        return _padded(run, text, spec, zeros=False)
    base = _BASES["d" if verb == "v" else verb] if verb in "vdboOxX" else None
    if base is None:
        return None
    sign = "-" if value < 0 else "+" if "+" in spec.flags else " " if " " in spec.flags else ""
    digits = _in_base(abs(value), base)
    if spec.precision is not None:
        if not spec.precision and not value:
            return _padded(run, "", _Spec(spec.flags, spec.width), zeros=False)
        least = spec.precision
    elif "0" in spec.flags and "-" not in spec.flags and spec.width:
        least = spec.width - len(sign)
    else:
        least = 0
    run.build(max(least, len(digits)))
    digits = digits.rjust(least, "0")
    if "#" in spec.flags and base != 10:
        prefix = {2: "0b", 16: "0x", 8: "" if digits.startswith("0") else "0"}[base]
        digits = prefix + digits
    if verb == "O":
        digits = "0o" + digits
    text = sign + (digits.upper() if verb == "X" else digits)
    return _padded(run, text, spec, zeros=False)


def _in_base(value: int, base: int) -> str:
    return format(value, {2: "b", 8: "o", 10: "d", 16: "x"}[base])


def _float(run: Run, value: float, verb: str, spec: _Spec) -> str | None:
    if verb in "bxX":
        raise Fault(f"%{verb} of a number with a fraction is not supported")
    if verb not in "veEfFgG":
        return None
    if "#" in spec.flags:
        raise Fault(f"%#{verb} of a number with a fraction is not supported")
    if (spec.precision or 0) > _MAX_PRECISION:
        raise Fault(f"a precision is more than {_MAX_PRECISION}")
    text = _digits(value, verb, spec.precision)
    if text == "NaN":
        sign = "+" if "+" in spec.flags else " " if " " in spec.flags else ""
        return _padded(run, sign + text, spec, zeros=False)
    negative = text.startswith("-")
    sign = "-" if negative else "+" if "+" in spec.flags else " " if " " in spec.flags else ""
    text = text.lstrip("+-")
    if text == "Inf":
        return _padded(run, (sign or "+") + text, spec, zeros=False)
    if "0" in spec.flags and "-" not in spec.flags and spec.width:
        run.build(spec.width)
        return sign + text.rjust(spec.width - len(sign), "0")
    return _padded(run, sign + text, spec)


def _digits(value: float, verb: str, precision: int | None) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        return decimal(value)
    if verb in "vgG":
        text = decimal(value) if precision is None else _general(value, precision or 1)
    else:
        kind = "e" if verb in "eE" else "f"
        text = f"{value:.{6 if precision is None else precision}{kind}}"
    return text.upper() if verb in "EG" else text


def _general(value: float, precision: int) -> str:
    """`%.3g`: so many digits, the exponent where it is large for them."""
    rounded = float(f"{value:.{precision - 1}e}")
    sign, digits, exponent = shortest(rounded)
    # A whole number with fewer digits than asked for keeps its form as long as all of them show.
    limit = precision
    if limit > len(digits) >= exponent + 1:
        limit = len(digits)
    if -4 <= exponent < limit:
        return f"{rounded:.{max(len(digits) - exponent - 1, 0)}f}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _character(value: int) -> str:
    return "\ufffd" if not 0 <= value <= 0x10FFFF or 0xD800 <= value < 0xE000 else chr(value)


def _prints(letter: str) -> bool:
    """Whether a character shows. No surrogate does, so no byte that is no UTF-8."""
    return letter.isprintable()


def _fits_backquotes(text: str) -> bool:
    return all(
        letter == "\t" or (letter >= " " and letter not in "`\x7f\ufeff" and not _is_byte(letter))
        for letter in text
    )


def _is_byte(letter: str) -> bool:
    return "\udc80" <= letter <= "\udcff"


def quoted(text: str, *, ascii_only: bool = False, mark: str = '"') -> str:
    """A Go string literal."""
    parts = [mark]
    for letter in text:
        code = ord(letter)
        if letter in ("\\", mark):
            parts.append("\\" + letter)
        elif _is_byte(letter):
            parts.append(f"\\x{code - 0xDC00:02x}")
        elif code in _QUOTED:
            parts.append("\\" + _QUOTED[code])
        elif code < 128 if ascii_only else True:
            if _prints(letter):
                parts.append(letter)
            else:
                parts.append(_escaped(code))
        else:
            parts.append(_escaped(code))
    parts.append(mark)
    return "".join(parts)


def _escaped(code: int) -> str:
    if code < 32 or code == 127:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
