"""Reads calls, from the marker where they begin, out of text that is still growing.

Written as a generator that yields where it needs more text, so that it reads like a grammar.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import Any

from .description import Calls, Parameter, Syntax
from .growing import Growing, Impossible, Wait
from .loose import LooseScan, load_loose
from .offered import Offered
from .python import Brackets, read_call
from .said import Call
from .values import NotAValue, Scan, carried, load

_NAME = 256
"""Longest name of a tool, in characters."""

LONGEST = 1 << 20
"""Characters of one call. A longer one is text."""

_IDENTIFIER = re.compile(r"[^\W\d][\w.\-]*")


class CallReader(Growing):
    """One attempt to read calls. Whoever made it adds text, and asks what was found."""

    def __init__(self, calls: Calls, offered: Offered, text: str, *, within: bool) -> None:
        """`text` begins with the marker of the section, or `within` it with that of a call."""
        super().__init__()
        self._calls = calls
        self._offered = offered
        self._open = _chunks(calls.each.start)
        if not within:
            self._open = [*_chunks(calls.section.start), *"[" * calls.listed, *self._open]
        self._bare = not self._open or self._open == ["["]
        self._ends = _chunks(calls.each.end)
        after = {*self._ends, *_chunks(calls.section.end), *_chunks(calls.separator)}
        after |= {"]", ","} if calls.listed else set()
        self._after = sorted(after, key=lambda literal: (-len(literal), literal))
        self._waiting = text
        self._steps = self._run()
        self.found: list[Call] = []
        self.body = 0
        """Where the text begins that is shown if no call becomes of it: 0, or behind the marker."""
        self.header = ""
        """What was read of a name and an id before `body`, which is shown, too."""
        self.kept = 0
        """Up to where the text has been turned into calls."""

    @property
    def text(self) -> str:
        """All that it was given."""
        return self._text + self._waiting

    def read(self, text: str = "", *, ended: bool = False) -> bool:
        """Reads on; whether it came to the end of the calls. Raises `Impossible`."""
        self._waiting += text
        while True:
            # However the text was cut, a call is looked at up to the same character.
            room = self.kept + LONGEST - len(self._text)
            self._text += self._waiting[:room]
            self._waiting = self._waiting[room:]
            self._ended = ended and not self._waiting
            kept = self.kept
            try:
                next(self._steps)
            except StopIteration:
                return True
            if not self._waiting:
                return False
            if self.kept == kept:
                raise Impossible

    def _run(self) -> Wait:
        for chunk in self._open:
            if not (yield from self._skip(chunk)) and chunk != "[":
                raise Impossible
        more = True
        while more:
            call = yield from self._item()
            self.found.append(call)
            self.header = ""
            self.kept = self.body = self._position
            more = yield from self._onward()
            self.kept = self.body = self._position

    def _item(self) -> Generator[None, None, Call]:
        match self._calls.syntax:
            case Syntax.OBJECT:
                return (yield from self._object())
            case Syntax.NAMED:
                return (yield from self._named())
            case Syntax.TAGGED:
                return (yield from self._tagged())
            case Syntax.PYTHON:
                return (yield from self._python())

    def _onward(self) -> Generator[None, None, bool]:
        """Passes what closes a call; whether another one follows at once."""
        separated = False
        closed = False
        while True:
            for literal in self._after:
                if closed and literal in ("]", ","):
                    continue
                if (yield from self._skip(literal)):
                    separated = separated or literal in (",", self._calls.separator.strip())
                    closed = closed or literal == "]"
                    break
            else:
                if self._ended and self._is_cut_off():
                    self._position = len(self._text)
                if closed or not (separated or self._calls.section.start.strip()):
                    return False
                if _chunks(self._calls.each.start):
                    return False
                first = yield from self._peek()
                match self._calls.syntax:
                    case Syntax.OBJECT:
                        return first == "{"
                    case Syntax.PYTHON:
                        return bool(_IDENTIFIER.match(first))
                    case Syntax.NAMED:
                        return bool(first) and separated
                    case Syntax.TAGGED:
                        return False

    def _is_cut_off(self) -> bool:
        """Whether the answer ends within what closes a call."""
        rest = self._text[self._position :].lstrip()
        return bool(rest) and any(literal.startswith(rest) for literal in self._after)

    # What every syntax needs

    def _arguments(self) -> Generator[None, None, dict[str, Any]]:
        """An object, from its first bracket on. Raises `Impossible`."""
        if self._calls.quote:
            return (yield from self._loose(self._calls.quote))
        value = yield from self._value(None)
        if not isinstance(value, dict):
            raise Impossible
        return value

    def _value(self, keys: frozenset[str] | None) -> Generator[None, None, Any]:
        start = self._position
        scan = Scan(start)
        while (end := scan.end(self._text)) is None:
            if keys is not None and not keys.issuperset(scan.keys):
                raise Impossible
            if self._ended:
                end = len(self._text)
                break
            yield
        if keys is not None and not keys.issuperset(scan.keys):
            raise Impossible
        if scan.broken and not (yield from self._closed_at(end)):
            raise Impossible
        try:
            value = load(self._text[start:end], ended=scan.broken)
        except NotAValue:
            raise Impossible from None
        self._position = end
        return value

    def _loose(self, quote: str) -> Generator[None, None, dict[str, Any]]:
        start = self._position
        scan = LooseScan(start, quote)
        while (end := scan.end(self._text)) is None and not self._ended:
            yield
        try:
            value = load_loose(self._text[start:end], quote, ended=end is not None)
        except NotAValue:
            raise Impossible from None
        self._position = len(self._text) if end is None else end
        return value

    def _closed_at(self, position: int) -> Generator[None, None, bool]:
        """Whether what ends a call stands there."""
        self._position = position
        for literal in self._after:
            if (yield from self._skip(literal)):
                return True
        return False

    def _call(self, name: Any, arguments: Any, id: Any = "") -> Call:
        if isinstance(arguments, str):
            try:
                arguments = load(arguments) if arguments.strip() else {}
            except NotAValue:
                raise Impossible from None
        if arguments is None:
            arguments = {}
        if not isinstance(name, str) or not name.strip() or not isinstance(arguments, dict):
            raise Impossible
        if self._bare and not self._offered.has(name.strip()):
            raise Impossible
        try:
            arguments = carried(arguments)
        except NotAValue:
            raise Impossible from None
        written = str(id) if isinstance(id, str | int) and not isinstance(id, bool) else ""
        return Call(name.strip(), arguments, written)

    # The syntaxes

    def _object(self) -> Generator[None, None, Call]:
        start = self._position
        if (yield from self._peek()) != "{":
            raise Impossible
        keys = None
        if self._bare:
            keys = self._keys()
            yield from self._bare_beginning(keys or self._offered.names)
        else:
            self.body = start
        value = yield from self._value(keys)
        return self._call_in(value)

    def _keys(self) -> frozenset[str] | None:
        """What may stand as a key in a call that no marker announces."""
        calls = self._calls
        if not calls.name:
            return None
        own = {path[0] for path in (calls.name, calls.arguments, calls.id) if path}
        return frozenset(own | {key for key, _ in calls.constants} | {"id", "type"})

    def _bare_beginning(self, keys: frozenset[str] | None) -> Wait:
        """Whether an object begins like a call. Raises `Impossible` as early as it does not."""
        key = yield from self._bare_text(self._position + 1, keys)
        if (key,) != self._calls.name:
            return
        colon = self._text.find('"', self._text.find('"', self._position) + 1) + 1
        while not (rest := self._text[colon:].lstrip()):
            yield from self._more()
        if rest[0] != ":":
            raise Impossible
        yield from self._bare_text(self._text.find(":", colon) + 1, self._offered.names)

    def _bare_text(
        self, position: int, allowed: frozenset[str] | None
    ) -> Generator[None, None, str]:
        """The text in quotes behind a position, if it is allowed. Raises `Impossible`."""
        while True:
            rest = self._text[position:].lstrip()
            text, closed, _ = rest[1:].partition('"')
            if (rest and rest[0] != '"') or len(text) > _NAME:
                raise Impossible
            if allowed is not None and not (
                text in allowed if closed else any(each.startswith(text) for each in allowed)
            ):
                raise Impossible
            if closed:
                return text
            yield from self._more()

    def _call_in(self, value: Any) -> Call:
        calls = self._calls
        if not isinstance(value, dict):
            raise Impossible
        if not calls.name:
            if len(value) != 1:
                raise Impossible
            ((name, arguments),) = value.items()
            return self._call(name, arguments)
        name = _dig(value, calls.name)
        arguments = _dig(value, calls.arguments)
        if not self._bare:
            inner = value.get("function")
            inner = inner if isinstance(inner, dict) else value
            name = inner.get("name") if name is None else name
            if arguments is None:
                arguments = inner.get("arguments", inner.get("parameters"))
        elif arguments is None:
            raise Impossible
        return self._call(name, arguments, _dig(value, calls.id) if calls.id else "")

    def _header(self, stops: Sequence[str]) -> Generator[None, None, tuple[str, str]]:
        """Name and id, up to the arguments, or up to one of `stops` where nothing separates them.

        Raises `Impossible`.
        """
        texts = [text.strip() for text in self._calls.between]
        name = id = ""
        values: list[str] = []
        start = self._position
        for field, text in zip(self._calls.fields, texts, strict=True):
            value = (yield from self._until([text] if text else stops, _NAME)).strip()
            if field == "name":
                name = value
            elif field == "id":
                id = value
            elif not value.isdecimal():
                raise Impossible
            values.append(value)
            self._position += len(text)
        if not name or "\n" in name:
            self._position = start
            raise Impossible
        if not self.body:
            self.body, self.header = self._position, " ".join(values)
        return name, id

    def _bare_name(self) -> Generator[None, None, str]:
        """The name of a tool up to the bracket of its arguments, with nothing but white space in
        between. Raises `Impossible` as early as it is none.
        """
        names = self._offered.names or frozenset[str]()
        yield from self._peek()
        start = self._position
        while True:
            head, bracket, _ = self._text[start : start + 2 * _NAME].partition("{")
            name = head.rstrip()
            begins = name in names or any(each.startswith(head) for each in names)
            if not begins or len(head) == 2 * _NAME or (self._ended and not bracket):
                raise Impossible
            if bracket:
                break
            yield
        if name not in names:
            raise Impossible
        self._position = start + len(head)
        return name

    def _named(self) -> Generator[None, None, Call]:
        if self._bare:
            name = yield from self._bare_name()
            return self._call(name, (yield from self._arguments()))
        name, id = yield from self._header(["{"])
        if (yield from self._peek()) != "{":
            raise Impossible
        return self._call(name, (yield from self._arguments()), id)

    def _tagged(self) -> Generator[None, None, Call]:
        parameter = self._calls.parameter
        assert parameter is not None
        starts = _chunks(parameter.start)
        ends = self._ends or _chunks(self._calls.section.end)
        name, id = yield from self._header([*starts[:1], *ends[:1]])
        arguments: dict[str, Any] = {}
        while True:
            if (yield from self._all(starts)):
                key, value = yield from self._argument(name, parameter, (starts, ends))
                arguments[key] = value
                continue
            start = self._position
            if ends and (yield from self._skip(ends[0])):
                self._position = start
            elif (yield from self._peek()):
                raise Impossible
            return self._call(name, arguments, id)

    def _argument(
        self, tool: str, parameter: Parameter, follow: Sequence[Sequence[str]]
    ) -> Generator[None, None, tuple[str, Any]]:
        others = {middle for _, middle in parameter.other_middles}
        middles = [middle for middle in {parameter.middle, *others} if middle.strip()]
        key = yield from self._until([_chunks(middle)[0] for middle in middles], _NAME)
        for middle in sorted(middles, key=lambda each: (-len(each), each)):
            if (yield from self._all(_chunks(middle))):
                break
        else:
            raise Impossible
        start = self._position
        stop = yield from self._value_end(parameter, follow)
        text = _without(self._text[start:stop], middle, parameter.end)
        raw = middle == parameter.middle and bool(others)
        quoted = parameter.quoted
        value = text if raw else self._offered.value(tool, key.strip(), text, quoted=quoted)
        return key.strip(), value

    def _value_end(
        self, parameter: Parameter, follow: Sequence[Sequence[str]]
    ) -> Generator[None, None, int]:
        """Passes what ends a value; where that begins. Raises `Impossible`.

        A value may have in it what ends it: that counts only where something else follows that can
        follow. At the end of the answer, where less may follow, the first one counts.
        """
        end = _chunks(parameter.end)
        first: tuple[int, int] | None = None
        while True:
            try:
                yield from self._until(end[:1], _ENDLESS)
            except Impossible:
                if first is None:
                    raise
                stop, self._position = first
                return stop
            stop = self._position
            if (yield from self._all(end)):
                yield from self._skip(parameter.separator.strip() or "\0")
                behind = self._position
                first = first or (stop, behind)
                goes_on = not (yield from self._peek())
                for chunks in follow:
                    goes_on = goes_on or (yield from self._all(chunks))
                self._position = behind
                if goes_on:
                    return stop
            self._position = stop + 1

    def _python(self) -> Generator[None, None, Call]:
        start = self._position
        first = yield from self._peek()
        if not _IDENTIFIER.match(first):
            raise Impossible
        begin = self._position
        while True:
            name = _IDENTIFIER.match(self._text, begin)
            behind = name.end() if name else begin
            if behind < len(self._text):
                break
            if self._ended:
                raise Impossible
            yield
        name = self._text[begin:behind]
        if self._text[behind] != "(":
            raise Impossible
        self._position = behind + 1
        inner = yield from self._peek()
        if not (inner == ")" or _IDENTIFIER.match(inner)):
            raise Impossible
        if self._bare and not self._offered.has(name):
            raise Impossible
        if not self._bare:
            self.body = self.body or start
        scan = Brackets(behind)
        while (end := scan.end(self._text)) is None:
            if self._ended:
                raise Impossible
            yield
        try:
            arguments = read_call(self._text[behind:end])
        except NotAValue:
            raise Impossible from None
        self._position = end
        return self._call(name, arguments)


_ENDLESS = 1 << 30


def _chunks(text: str) -> list[str]:
    """The parts of a marker between which white space does not matter."""
    return text.split()


def _without(text: str, middle: str, end: str) -> str:
    """A value without the white space that belongs to the markers around it."""
    before = middle[len(middle.rstrip()) :]
    after = end[: len(end) - len(end.lstrip())]
    return text.removeprefix(before).removesuffix(after)


def _dig(value: Any, path: Sequence[str]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value
