"""Derives a format from a template: probes are rendered, and their differences read.

There is no table of families. What a template does not show, because it leaves out the calls of
earlier messages, is read from what it tells the model; see `instructions` and `harmony` for the
few that say nothing of it either.
"""

from __future__ import annotations

from ..rendering import Rendering
from .calls import read_calls, read_joints, without_content, without_role
from .description import Format, Markers, Reasoning
from .harmony import is_harmony
from .instructions import instructed
from .probing import (
    ANSWERED,
    CONTENT,
    FIRST,
    LATER,
    RESULT,
    SECOND,
    TYPED,
    Answer,
    Probing,
    common_end,
    up_to_end,
)
from .reasoning import closing_of, is_thought, read_reasoning, without_reasoning


def derive(rendering: Rendering, *others: Rendering) -> Format:
    """The format of what a template makes a model write.

    `others` render the same template in other ways, for templates that insist on one: the first
    that shows how calls are written counts. A template of which nothing can be learnt gives a
    format in which everything is text.
    """
    first: Format | None = None
    for each in (rendering, *others):
        form = _derive(Probing(each))
        if form.harmony or (form.calls and form.calls.rendered):
            return form
        if first is None or (first.plain and not form.plain):
            first = form
    return first or Format()


def _derive(probing: Probing) -> Format:
    with_tools = probing.prompt()
    tools = with_tools is not None
    offered = with_tools is not None and FIRST.name in with_tools
    prompt = with_tools or probing.prompt(tools=False)
    if prompt is None:
        return Format()
    plain = probing.answer(CONTENT, tools=tools)
    if is_harmony(prompt, plain.text if plain else ""):
        return _harmony(probing, offered)
    reasoning, content = read_reasoning(probing, tools)
    one = probing.answer(calls=(FIRST,), tools=tools)
    end_of_turn = _end_of_turn(plain, one)
    lead = ""
    calls = None
    if one is not None:
        texts = [
            without_reasoning(reasoning, answer.prompt, answer.text) if answer else None
            for answer in (
                one,
                probing.answer(calls=(FIRST, SECOND), tools=tools),
                probing.answer(calls=(TYPED,), tools=tools),
            )
        ]
        found = read_calls(one.prompt, texts[0] or "", texts[1], texts[2], end_of_turn)
        if found:
            calls, lead = found
    if calls is None and offered and with_tools is not None:
        calls = instructed(with_tools)
    if plain is not None and content == Markers():
        content = _content(plain, reasoning, lead, end_of_turn)
        if content.end and content.end == end_of_turn:
            end_of_turn = _next_end(plain, end_of_turn)
        calls = without_content(calls, content) if calls and not lead else calls
        if calls and (bare := without_role(calls, content, lead)):
            calls, content, lead = bare, Markers(), ""
    both = probing.answer(CONTENT, calls=(FIRST,), tools=tools) if calls else None
    said = up_to_end(both.text, end_of_turn, (CONTENT,), (FIRST.name,)) if both else ""
    silent: tuple[str, ...] = ()
    if calls and calls.rendered:
        calls, silent = read_joints(calls, content, said)
    mixed = CONTENT in said and FIRST.name in said
    if both and is_thought(reasoning, both.prompt, said, CONTENT):
        mixed = False
    return Format(
        reasoning=reasoning,
        content=content,
        calls=calls,
        silent=silent,
        lead=lead,
        end=end_of_turn,
        tools=offered,
        mixed=mixed,
    )


def _harmony(probing: Probing, offered: bool) -> Format:
    low, high = probing.prompt(think="low"), probing.prompt(think="high")
    start, end = "<|channel|>analysis<|message|>", "<|end|>"
    reasoning = Reasoning(start, end, levels=low != high)
    return Format(reasoning=reasoning, tools=offered, harmony=True)


def _end_of_turn(plain: Answer | None, one: Answer | None) -> str:
    """What ends a message, whatever it consists of."""
    if plain is None:
        return ""
    after = plain.text.partition(CONTENT)[2]
    if one is None:
        return after.strip()
    if RESULT not in one.text and LATER not in plain.text:
        same = common_end(after, one.text)
        end = after[len(after) - same :].strip()
        if not end:  # calls and texts end differently
            end = after.lstrip()
            shared = next((m for m in ANSWERED.finditer(end) if m[0] in one.text), None)
            end = end[shared.start() :] if shared else end
        marker = ANSWERED.match(end)  # what follows may belong to the next message already
        return marker[0] if marker else end
    found = [each[0] for each in ANSWERED.finditer(after)]
    return next((each for each in found if each in one.text), "")


def _content(plain: Answer, reasoning: Reasoning | None, lead: str, end_of_turn: str) -> Markers:
    """What stands around the text of an answer."""
    text = without_reasoning(reasoning, plain.prompt, plain.text)
    before, _, after = text.partition(CONTENT)
    if not (lead + before).strip():
        return Markers()
    closing = closing_of(before.strip())
    if closing and after.lstrip().startswith(closing):
        return Markers(before.lstrip(), closing)
    return Markers(lead + before.lstrip(), _up_to(after, end_of_turn) if end_of_turn else "")


def _next_end(plain: Answer, end: str) -> str:
    """What ends a message whose text has an end of its own."""
    after = plain.text.partition(CONTENT)[2].partition(end)[2].strip()
    marker = ANSWERED.match(after)
    return marker[0] if marker else after


def _up_to(text: str, end: str) -> str:
    return text.partition(end)[0] if end else text
