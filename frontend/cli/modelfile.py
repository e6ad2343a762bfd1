"""The language of Modelfiles: what a model is made of, one command after the other.

    # a model's name, or a path to a GGUF file
    FROM llama3.2
    PARAMETER temperature 0.7
    SYSTEM "You are a llama."

A command ends with its line, unless its value has begun with a quote or three that are not closed
yet. Upper and lower case of commands do not count. A line that begins with `#` is a comment.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...protocol.errors import Code, PronkError
from .parameters import Value, add_parameter

MAX_BYTES = 4 * 2**20
"""Longest Modelfile: templates and licenses are at most 2 MiB each in the library."""

COMMANDS = (
    "FROM",
    "ADAPTER",
    "TEMPLATE",
    "SYSTEM",
    "PARAMETER",
    "MESSAGE",
    "LICENSE",
    "RENDERER",
    "PARSER",
    "REQUIRES",
)
ROLES = ("system", "user", "assistant")

_WITH_KEY = ("PARAMETER", "MESSAGE")
"""Commands with a word before their value."""

_QUOTES = ('"""', '"')
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Named:
    """A model, or a path, that a command names, and the line on which it does."""

    text: str
    line: int


@dataclass(slots=True)
class Modelfile:
    """What a Modelfile says."""

    origins: list[Named] = field(default_factory=list[Named])
    """The values of FROM: models or paths, as they are written."""
    adapters: list[Named] = field(default_factory=list[Named])
    template: str | None = None
    system: str | None = None
    parameters: dict[str, Value] = field(default_factory=dict[str, Value])
    """With their types. `stop` and other lists have the values of all their lines."""
    messages: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    licenses: list[str] = field(default_factory=list[str])
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None


@dataclass(frozen=True, slots=True)
class _Command:
    name: str
    key: str
    value: str
    line: int


def parse(data: bytes) -> Modelfile:
    """Raises `PronkError` that names the line and what is wrong with it."""
    found = Modelfile()
    for command in _commands(_decoded(data)):
        _apply(command, found)
    if not found.origins:
        raise _wrong(None, "there is no FROM; write `FROM` and a model's name or a GGUF file")
    return found


def _decoded(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise _wrong(None, f"it is longer than {MAX_BYTES // 2**20} MiB")
    encoding = "utf-8-sig"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise _wrong(line, "is not valid UTF-8; is this a Modelfile?") from None
    if "\0" in text:
        raise _wrong(text[: text.index("\0")].count("\n") + 1, "has a NUL; is this a Modelfile?")
    return text


def _commands(text: str) -> Iterator[_Command]:
    """The commands in their order, each with its value without its quotes."""
    # Lines keep their ends: what stands between quotes stays as it is.
    lines = enumerate(_LINE.findall(text), start=1)
    for number, line in lines:
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        name, _, rest = _split(words)
        if name.upper() not in COMMANDS:
            raise _wrong(number, f"{name[:40]!a} is no command; there are {', '.join(COMMANDS)}")
        key = ""
        if name.upper() in _WITH_KEY:
            key, _, rest = _split(rest)
        if not rest:
            raise _wrong(number, f"{name.upper()} has no value")
        # With the blanks at the line's end, which belong to a text that goes on behind it.
        yield _Command(name.upper(), key, _value(line[line.rindex(rest) :], number, lines), number)


def _value(first: str, number: int, lines: Iterator[tuple[int, str]]) -> str:
    """A value that begins with `first`; takes further lines until its quotes are closed."""
    quote = next((each for each in _QUOTES if first.startswith(each)), "")
    pieces = [first]
    closed = not quote or (_ends(first, quote) and len(first.rstrip()) >= 2 * len(quote))
    while not closed:
        _, line = next(lines, (0, ""))
        if not line:
            raise _wrong(number, f"the text begins with {quote} and has no {quote} at its end")
        pieces.append(line)
        closed = _ends(line, quote)
    text = "".join(pieces).strip()
    return text[len(quote) : len(text) - len(quote)]


def _ends(line: str, quote: str) -> bool:
    return line.rstrip().endswith(quote)


def _split(text: str) -> tuple[str, str, str]:
    """The first word, and what follows its blanks."""
    match = _WORD.match(text)
    word = match[0] if match else ""
    rest = text[len(word) :]
    return word, rest[: len(rest) - len(rest.lstrip())], rest.lstrip()


def _apply(command: _Command, found: Modelfile) -> None:
    value = command.value
    match command.name:
        case "FROM":
            found.origins.append(Named(_needed(command), command.line))
        case "ADAPTER":
            found.adapters.append(Named(_needed(command), command.line))
        case "PARAMETER":
            try:
                add_parameter(found.parameters, command.key, value)
            except ValueError as error:
                raise _wrong(command.line, f"PARAMETER {command.key[:40]} {error}") from None
        case "MESSAGE":
            role = command.key.lower()
            if role not in ROLES:
                raise _wrong(
                    command.line, f"{command.key[:40]!a} is no role; there are {', '.join(ROLES)}"
                )
            found.messages.append({"role": role, "content": value})
        case "LICENSE":
            found.licenses.append(value)
        case _:
            setattr(found, command.name.lower(), value)


def _needed(command: _Command) -> str:
    if not command.value:
        raise _wrong(command.line, f"{command.name} has no value")
    return command.value


def _wrong(line: int | None, problem: str) -> PronkError:
    place = "the Modelfile" if line is None else f"line {line} of the Modelfile"
    return PronkError(Code.INVALID_REQUEST, f"{place}: {problem}")
