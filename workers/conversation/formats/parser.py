"""Separates an answer, while it comes, into content, thinking and calls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from .description import Calls, Format, Syntax
from .growing import Impossible
from .harmony import HarmonyParser
from .offered import Offered
from .reader import CallReader
from .said import Content, Said, Thinking

_ATTEMPTS = 64
"""How often, when the answer has ended, something is still tried that no call became of."""

_SPACE = 64
"""Characters of white space before a marker that are taken to belong to it."""


class _Means(Enum):
    """What a marker is for."""

    REASONING = 1
    SILENT = 2
    SECTION = 3
    CALL = 4


class AnswerParser:
    """Interprets one format for one answer.

    What it says depends on the whole text alone: however it is cut into pieces, the parts that
    come out are the same when neighbours are joined. Nothing of a marker comes out, and text is
    held back only while it may be the beginning of one, or white space before one.
    """

    def __init__(
        self,
        form: Format,
        *,
        opened: bool = False,
        tools: Iterable[Mapping[str, Any]] | None = None,
    ) -> None:
        """`opened`: whether the prompt ended within reasoning.

        `tools` are those of the request. Where there are none, nothing is a call; where nothing is
        known of them (None), a call may have any name, and arguments any type.
        """
        offered = Offered(tools)
        self._harmony = HarmonyParser() if form.harmony else None
        self._calls = None if offered.none else form.calls
        self._offered = offered
        self._reasoning = form.reasoning
        self._end = form.reasoning.end.strip() if form.reasoning else ""
        self._start = form.reasoning.start.strip() if form.reasoning else ""
        self._thinks = self._repeats = opened and bool(self._end)
        self._silent = form.silent
        self._know(_markers(form, self._calls))
        self._names = _names(self._calls, offered)
        lead = form.lead.strip()
        begins = any(lead.startswith(marker) for marker in self._markers)
        self._text = lead if begins and not self._thinks else ""
        self._lead = self._text
        self._reader: CallReader | None = None
        self._space = ""
        self._at_start = True
        """Whether nothing has been said since the beginning, or since reasoning or calls."""
        self._drops_space = False
        self._said_any = False
        self._ended = False
        self._attempts = _ATTEMPTS

    @classmethod
    def behind(
        cls, prompt: str, form: Format, *, tools: Iterable[Mapping[str, Any]] | None = None
    ) -> AnswerParser:
        """The parser of what follows a prompt, of which only the end matters."""
        if form.lead and not prompt.rstrip().endswith(form.lead.strip()):
            form = replace(form, lead="")  # the model goes on with what it was given as said
        parser = cls(form, opened=form.opened_by(prompt), tools=tools)
        if form.reasoning and prompt.rstrip().endswith(form.reasoning.end.strip()):
            parser._drops_space = True
        return parser

    def _know(self, markers: dict[str, _Means]) -> None:
        """Looks out for these markers from now on."""
        self._markers = markers
        self._prefixes = _prefixes(markers)
        self._longest = max(map(len, self._prefixes), default=0)
        self._firsts = frozenset(marker[0] for marker in markers)
        longest_first = sorted(markers, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        firsts = "".join(map(re.escape, sorted(self._firsts)))
        self._suspect = re.compile(rf"[{firsts}]|\s\Z" if firsts else r"(?!)").search

    def push(self, text: str) -> list[Said]:
        """What is certain after this piece."""
        if (
            not self._text
            and not self._at_start
            and not self._thinks
            and self._reader is None
            and self._harmony is None
            and not self._suspect(text)
        ):
            return [Content(text)] if text else []
        return self._advance(text)

    def finish(self) -> list[Said]:
        """What was held back: calls as far as they are valid, and everything else as text."""
        self._ended = True
        return self._advance("")

    def _advance(self, text: str) -> list[Said]:
        if self._harmony is not None:
            return self._harmony.finish() if self._ended else self._harmony.push(text)
        self._text += text
        said: list[Said] = []
        while self._step(said):
            pass
        return said

    def _step(self, said: list[Said]) -> bool:
        """Does one thing; whether there may be more to do."""
        if self._reader is not None:
            return self._read_calls(self._reader, said)
        if self._thinks:
            return self._think(said)
        return self._speak(said)

    # Reasoning

    def _think(self, said: list[Said]) -> bool:
        text = self._text.lstrip() if self._at_start else self._text
        if self._repeats:  # what the prompt has already
            if self._start.startswith(text) and text != self._start and not self._ended:
                self._text = text
                return False
            self._repeats = False
            text = text.removeprefix(self._start).lstrip()
        at = text.find(self._end)
        if at >= 0:
            self._say(Thinking(text[: _before_space(text, at)]), said)
            self._text = text[at + len(self._end) :]
            self._thinks = False
            self._at_start = self._drops_space = True
            return True
        keep = len(text) if self._ended else _may_end(text, self._end)
        self._say(Thinking(text[:keep]), said)
        if keep:
            self._at_start = False
        self._text = text[keep:]
        return False

    def _say(self, part: Content | Thinking, said: list[Said]) -> None:
        if part.text:
            self._said_any = True
            said.append(part)

    # Text

    def _speak(self, said: list[Said]) -> bool:
        if self._at_start and self._names and (begun := self._begin_named(said)) is not None:
            return begun
        text = self._text
        position = 0
        while found := self._any.search(text, position):
            if not self._ended and text[found.start() :] in self._prefixes:
                break  # it may be a longer one
            means = self._meaning(found[0], text[: found.start()])
            if means is None:
                position = found.start() + 1
                continue
            before = text[: found.start()]
            self._act(means, before, found[0], text[found.end() :], said)
            return True
        keep = len(text) if self._ended else self._certain(text)
        if text == self._lead and self._ended:  # the answer is empty
            text, keep = "", 0
        self._tell(text[:keep], said)
        self._text = text[keep:]
        return False

    def _begin_named(self, said: list[Said]) -> bool | None:
        """Begins to read a call that nothing announces but its name; None where none begins here.

        False where it may begin with what is still to come.
        """
        head = self._text.lstrip()
        space = len(self._text) - len(head)
        self._tell(self._text[: max(0, space - _SPACE)], said)
        text = self._text = self._text[max(0, space - _SPACE) :]
        if any(head.startswith(name) for name in self._names):
            assert self._calls is not None
            self._space = text[: len(text) - len(head)]
            self._text = ""
            self._reader = CallReader(self._calls, self._offered, head, within=False)
            return True
        waits = not self._ended and any(name.startswith(head) for name in self._names)
        return False if waits else None

    def _meaning(self, marker: str, before: str) -> _Means | None:
        """What a marker means where it stands; None where it is only text."""
        means = self._markers[marker]
        at_start = self._at_start and not before.strip()
        if means is _Means.REASONING and not at_start:
            return None
        if means is _Means.SILENT and marker == self._end and not at_start:
            return means if marker in self._silent else None
        return means

    def _act(self, means: _Means, before: str, marker: str, after: str, said: list[Said]) -> None:
        if means is _Means.SECTION or means is _Means.CALL:
            assert self._calls is not None
            spoken = before[: _before_space(before, len(before))]
            self._tell(spoken, said)
            self._space = before[len(spoken) :]
            within = means is _Means.CALL
            self._text = ""
            self._reader = CallReader(self._calls, self._offered, marker + after, within=within)
            return
        self._tell(before[: _before_space(before, len(before))], said)
        self._text = after
        self._lead = ""
        self._thinks = means is _Means.REASONING
        self._at_start = self._drops_space = True

    def _certain(self, text: str) -> int:
        """How much of a text is not the beginning of a marker, nor white space before one."""
        if not self._markers:
            return len(text)
        end = len(text)
        for at in range(max(0, end - self._longest), end):
            if text[at] in self._firsts and text[at:] in self._prefixes:
                end = at
                break
        return _before_space(text, end)

    def _tell(self, text: str, said: list[Said]) -> None:
        if self._at_start and self._drops_space:
            text = text.lstrip()
        if text:
            self._at_start = self._at_start and text.isspace()
            self._say(Content(text), said)

    # Calls

    def _read_calls(self, reader: CallReader, said: list[Said]) -> bool:
        text, self._text = self._text, ""
        try:
            done = reader.read(text, ended=self._ended)
        except Impossible:
            self._give_up(reader, said)
            return True
        self._take(reader, said)
        if done:
            self._reader = None
            self._text = reader.text[reader.kept :]
        return done

    def _take(self, reader: CallReader, said: list[Said]) -> None:
        if reader.found:
            said += reader.found
            reader.found.clear()
            self._space = ""
            self._lead = ""
            self._said_any = True
            self._at_start = self._drops_space = True

    def _give_up(self, reader: CallReader, said: list[Said]) -> None:
        """What looked like a call is text: the marker is, where nothing like a call follows it."""
        self._take(reader, said)
        self._reader = None
        rest = reader.header + reader.text[reader.body :]
        if reader.body:
            self._tell(self._space, said)
            calls = self._calls
            assert calls is not None
            ends = (calls.each.end, calls.section.end)
            closers = [end for text in ends for end in text.split()[:1]]
            self._know(dict.fromkeys(closers, _Means.SILENT) | self._markers)
        elif self._lead:
            rest = rest.removeprefix(self._lead)
        else:
            marker = self._any.match(rest)
            length = marker.end() if marker else 1
            shown, rest = rest[:length], rest[length:]
            self._tell(self._space + shown, said)
            self._at_start = False
        self._space = self._lead = ""
        if self._ended:
            self._attempts -= 1
            if not self._attempts:
                self._know({})
        self._text = rest


def _whole(text: str) -> str:
    """A marker without white space, but for what ends a word: `all` is not `allow`."""
    text = text.lstrip()
    bare = text.rstrip()
    return text[: len(bare) + 1] if bare[-1:].isalnum() else bare


def _markers(form: Format, calls: Calls | None) -> dict[str, _Means]:
    """Every marker that may begin something, without the white space in and around it."""
    markers: dict[str, _Means] = {}

    def add(text: str, means: _Means) -> None:
        for chunk in text.split()[:1]:
            markers.setdefault(chunk, means)

    if form.reasoning:
        markers[form.reasoning.start.strip()] = _Means.REASONING
        markers.setdefault(form.reasoning.end.strip(), _Means.SILENT)
    for text in (form.content.start, form.content.end, *form.silent):
        if text.strip():
            markers.setdefault(_whole(text), _Means.SILENT)
    if calls:
        add(calls.section.start, _Means.SECTION)
        add(calls.each.start, _Means.CALL)
        if not calls.is_announced and calls.syntax is not Syntax.NAMED:
            listed = calls.listed or calls.syntax is Syntax.PYTHON
            add("[" if listed else "{", _Means.SECTION)
    markers.pop("", None)
    return markers


def _names(calls: Calls | None, offered: Offered) -> frozenset[str]:
    """Of the tools whose names are all that announces their calls."""
    if calls is None or calls.syntax is not Syntax.NAMED or calls.is_announced:
        return frozenset()
    return frozenset(filter(None, offered.names or ()))


def _prefixes(markers: Iterable[str]) -> frozenset[str]:
    return frozenset(marker[:end] for marker in markers for end in range(1, len(marker)))


def _may_end(text: str, marker: str) -> int:
    """How much of a text is certainly not white space before a marker, nor a part of it."""
    end = len(text)
    for length in range(min(len(marker) - 1, end), 0, -1):
        if text.endswith(marker[:length]):
            end -= length
            break
    return _before_space(text, end)


def _before_space(text: str, end: int) -> int:
    """Where the white space begins that would belong to a marker at a position."""
    start = max(0, end - _SPACE)
    return start + len(text[start:end].rstrip())
