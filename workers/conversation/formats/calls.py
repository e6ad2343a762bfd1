"""Reads from two answers, with one call and with two, how a template writes calls."""

from __future__ import annotations

import re
from dataclasses import replace

from .description import Calls, Markers, Syntax
from .items import Item, find_item
from .probing import ANSWERED, CONTENT, FIRST, SECOND, TYPED, common_end, common_start

_FAR = 100
"""Characters between the key and the value of an argument, at most."""
_DIGITS = re.compile(r"(\d+)")


def without_content(calls: Calls, content: Markers) -> Calls:
    """Calls of an answer that as a whole stands between the markers of its text."""
    start, own = calls.section.start.lstrip(), content.start.strip()
    if not own or not start.startswith(own):
        return calls
    return replace(calls, section=Markers(start.removeprefix(own).lstrip(), calls.section.end))


def without_role(calls: Calls, content: Markers, lead: str) -> Calls | None:
    """Calls whose only marker is the one with which every message of the model begins, and the
    prompt ends: they have none. None where it is not so.
    """
    marker = lead.strip()
    markers = {marker, content.start.strip(), calls.each.start.strip()}
    if not marker or len(markers) > 1 or calls.section.start.strip() or content.end.strip():
        return None
    bare = replace(calls, each=replace(calls.each, start=""), separator=marker)
    return bare if _readable(bare) else None


def read_calls(
    prompt: str, one: str, two: str | None, typed: str | None, end_of_turn: str
) -> tuple[Calls, str] | None:
    """How calls are written, and what of their first marker stands in the prompt already.

    `one` and `two` are the answers with one call and with two, which not every template allows;
    `typed` has arguments of several types. None where it cannot be read.
    """
    alone = find_item(one, FIRST, SECOND)
    if alone is None:
        return None
    pair = _pair(two) if two else None
    if two and pair and end_of_turn and end_of_turn in two[pair[0].end : pair[1].start]:
        pair = None  # two messages
    lead = ""
    if two is None or pair is None:
        before, after = one[: alone.start], _up_to(one[alone.end :], end_of_turn)
        section, each, separator = Markers(), Markers(before, after), ""
        same = before
    else:
        first, second = pair
        before, after = two[: first.start], _up_to(two[second.end :], end_of_turn)
        gap = two[first.end : second.start]
        tail = common_start(after, gap)
        behind = prompt[-40:] + before
        head = min(common_end(_alike(behind), _alike(gap)), len(gap) - tail)
        if head > len(before) and not before.strip():
            lead = behind[len(behind) - head : len(behind) - len(before)].lstrip()
        head = min(head, len(before) + len(lead))
        opening = (lead + before)[len(lead + before) - head :]
        same = gap[len(gap) - head :] if head else ""
        section = Markers((lead + before)[: len(lead + before) - head], after[tail:])
        each = Markers(opening, after[:tail])
        separator = gap[tail : len(gap) - head]
    calls = Calls(
        alone.syntax,
        section,
        each,
        separator,
        several=pair is not None,
        name=alone.name,
        arguments=alone.arguments,
        id=alone.id,
        textual=alone.textual,
        constants=alone.constants,
        quote=alone.quote,
    )
    calls = _listed(_whole_brackets(calls))
    if alone.syntax in (Syntax.NAMED, Syntax.TAGGED):
        start, *early = _apart(calls.each.start, same)
        name, *late = _apart(alone.between, pair[1].between if pair else alone.between)
        header = [*early, ("name", name[1]), *late]
        calls = replace(
            calls,
            each=Markers(start[1], calls.each.end),
            fields=tuple(field for field, _ in header),
            between=tuple(text for _, text in header),
        )
    if alone.parameter:
        parameter = alone.parameter
        if typed:
            parameter = replace(parameter, other_middles=_other_middles(typed, parameter.middle))
        calls = replace(calls, parameter=parameter)
    return (calls, lead) if _readable(calls) else None


def read_joints(calls: Calls, content: Markers, said: str) -> tuple[Calls, tuple[str, ...]]:
    """What an answer has between its text and its calls, that is neither of them.

    `said` is an answer with both, or nothing. The calls come back without what turned out to stand
    around the text.
    """
    at, name = said.find(CONTENT), said.find(FIRST.name)
    if not 0 <= at < name:
        return calls, ()
    behind = at + len(CONTENT)
    opening = (calls.section.start + calls.each.start).strip()
    before = said[:at].strip()
    gap = said[behind:name].strip()
    rest = opening.removeprefix(before).strip()
    if before and rest and opening.startswith(before) and gap.startswith(rest):
        section, each = replace(calls.section, start=""), replace(calls.each, start="")
        return replace(calls, section=section, each=each), (before, rest)
    first = (opening.split() or [""])[0]
    start = said.rfind(first, behind, name) if first else -1
    between = said[behind:start].strip() if start >= 0 else ""
    between = between.removeprefix(content.end.strip())
    # Only what is a marker by its looks: words are never taken away from a text.
    return calls, tuple(chunk for chunk in between.split() if ANSWERED.match(chunk))


def _pair(text: str) -> tuple[Item, Item] | None:
    first = find_item(text, FIRST, SECOND)
    second = find_item(text, SECOND, FIRST, first.end) if first else None
    if first is None or second is None or second.syntax is not first.syntax:
        return None
    return first, second


def _up_to(text: str, end_of_turn: str) -> str:
    return text.partition(end_of_turn)[0] if end_of_turn else text


def _alike(text: str) -> str:
    """A text with every id and number the same, because they count the calls."""
    for call in (FIRST, SECOND):
        text = text.replace(call.id, "0" * len(call.id)).replace(call.name, "0" * len(call.name))
    return _DIGITS.sub(lambda found: "0" * len(found[0]), text)


def _whole_brackets(calls: Calls) -> Calls:
    """Markers that are nothing but white space are none."""
    section, each = calls.section, calls.each
    if not each.start.strip():
        section = Markers(section.start + each.start, section.end)
        each = Markers("", each.end)
    if not each.end.strip():
        section = Markers(section.start, each.end + section.end)
        each = Markers(each.start, "")
    return replace(calls, section=section, each=each)


def _listed(calls: Calls) -> Calls:
    """The brackets of a list are taken out of the markers around it."""
    section, each = calls.section, calls.each
    for name, markers in (("section", section), ("each", each)):
        start, end = markers.start.rstrip(), markers.end.lstrip()
        if start.endswith("[") and end.startswith("]"):
            inner = Markers(start[:-1].rstrip(), end[1:].lstrip())
            changed = {name: inner}
            if name == "each":  # one call at a time, in a list of its own
                changed = {"section": inner, "each": Markers()}
            return replace(calls, **changed, listed=True)
    return calls


def _apart(text: str, other: str) -> list[tuple[str, str]]:
    """A text divided where the id or the name of the first call stands, or a number that counts the
    calls.

    `other` is the same for the second call. Each part has before it what stands there: nothing,
    `id`, `name` or `index`.
    """
    parts: list[tuple[str, str]] = []
    field = ""
    pieces = re.split(f"({FIRST.id}|{FIRST.name})", text)
    others = re.split(f"({SECOND.id}|{SECOND.name})", other)
    for number in range(0, len(pieces), 2):
        own = _DIGITS.split(pieces[number])
        theirs = _DIGITS.split(others[number]) if len(others) == len(pieces) else own
        start = own[0]
        for index in range(1, len(own), 2):
            if len(own) == len(theirs) and own[index] != theirs[index]:
                parts.append((field, start))
                field, start = "index", own[index + 1]
            else:
                start += own[index] + own[index + 1]
        parts.append((field, start))
        if number + 1 < len(pieces):
            field = "id" if pieces[number + 1] == FIRST.id else "name"
    return parts


def _other_middles(typed: str, middle: str) -> tuple[tuple[str, str], ...]:
    """What stands between key and value where that is no text, for each kind of value."""
    found: dict[str, str] = {}
    start = typed.find(TYPED.name)
    for key, kind, begins in (
        ("gnumber", "number", str(TYPED.arguments["gnumber"])),
        ("hflag", "boolean", "true"),
        ("jlist", "array", "["),
    ):
        behind = typed.find(key, start) + len(key)
        end = typed.lower().find(begins, behind, behind + _FAR)
        if start >= 0 and behind >= len(key) and end >= 0:
            found[kind] = typed[behind:end]
    number = found.get("number", middle)
    if number == middle:
        return ()
    before, word, after = number.partition("number")
    for kind in ("boolean", "array", "object", "null"):
        named = before + kind + after if word else number
        found.setdefault(kind, named)
    return tuple(found.items())


def _readable(calls: Calls) -> bool:
    """Whether there is something by which a call can be told from text."""
    if calls.syntax is Syntax.OBJECT:
        return True
    if calls.is_announced:
        ends = calls.each.end.strip() or calls.section.end.strip()
        return calls.syntax is not Syntax.TAGGED or bool(ends)
    if calls.syntax is Syntax.NAMED:  # by a name that was declared, at an answer's beginning
        return calls.fields == ("name",) and not calls.between[0].strip()
    return calls.syntax is Syntax.PYTHON and calls.listed
