"""Reads how a template writes what the model thinks."""

from __future__ import annotations

import re

from ..go_chat import Think
from .description import Markers, Reasoning
from .probing import ANSWERED, CONTENT, FIRST, THOUGHT, Probing, common_start

_PAIR = re.compile(r"<([^<>/\s|]{1,60})>\s{0,9}</\1>")
_PHRASE = re.compile(r"\bafter ['\"]([^'\"\n]{3,60}:)['\"]")
_OPPOSITES = (
    ("START", "END"),
    ("start", "end"),
    ("begin", "end"),
    ("BEGIN", "END"),
    ("<|open|>", "<|close|>"),
)
_EMPTY = re.compile(
    rf"(?P<start>{ANSWERED.pattern})(?P<word>(?:[a-z]{{1,30}}\s*)?)\s*(?P<end>{ANSWERED.pattern})\s*\Z"
)


def read_reasoning(probing: Probing, tools: bool) -> tuple[Reasoning | None, Markers]:
    """The markers of reasoning, if there are any, and those of text that come with them."""
    markers = _rendered(probing, tools) or _in_prompts(probing, tools)
    content = Markers()
    if markers is None:
        markers, content = _asked_for(probing)
    if markers is None:
        return None, content
    prompts = [probing.prompt(tools=tools, think=think) for think in (None, True, False)]
    low, high = (probing.prompt(tools=tools, think=think) for think in ("low", "high"))
    switchable = prompts[2] is not None and prompts[2] != (prompts[1] or prompts[0])
    levels = None not in (low, high) and low != high
    opens = tuple(
        when
        for when, prompt in zip(("default", "on", "off"), prompts, strict=True)
        if prompt is not None and prompt.rstrip().endswith(markers.start.strip())
    )
    return Reasoning(markers.start, markers.end, switchable, levels, opens), content


def _rendered(probing: Probing, tools: bool) -> Markers | None:
    """From a message that was thought about."""
    plain = probing.answer(CONTENT, tools=tools)
    before = plain.text.partition(CONTENT)[0].strip() if plain else ""
    for think in (True, None):
        for content, calls in ((CONTENT, ()), (CONTENT, (FIRST,)), ("", (FIRST,))):
            answer = probing.answer(content, THOUGHT, calls, tools=tools, think=think)
            if answer is None or THOUGHT not in answer.text:
                continue
            head, _, rest = answer.text.partition(THOUGHT)
            start = head.lstrip() or _opening(probing, answer.prompt, tools, think)
            until = content or FIRST.name
            if not start.strip() or until not in rest:
                continue
            between = rest.partition(until)[0]
            end = between.strip()
            closing = closing_of(start.strip())
            if closing and closing in end:
                end = closing
            elif content and before and end.endswith(before) and end != before:
                end = end[: -len(before)].strip()
            elif found := ANSWERED.match(end):
                end = found[0]
            if end:
                return Markers(start, _with_space(end, between))
    return None


def _opening(probing: Probing, before: str, tools: bool, think: Think) -> str:
    """With what a prompt has the model begin to think, where the template leaves that out later."""
    prompt = probing.prompt(tools=tools, think=think) or ""
    added = prompt.removeprefix(before) if prompt.startswith(before) else ""
    return added if added.strip() else _last_marker(before)


def _with_space(marker: str, text: str) -> str:
    """A marker with the white space around it where it stands in a text."""
    before, _, after = text.partition(marker)
    left = before[len(before.rstrip()) :]
    return left + marker + after[: len(after) - len(after.lstrip())]


def _in_prompts(probing: Probing, tools: bool) -> Markers | None:
    """From what the template puts in the model's mouth when it is, or is not, to think."""
    prompts = {think: probing.prompt(tools=tools, think=think) for think in (False, None, True)}
    known = [(think, prompt) for think, prompt in prompts.items() if prompt is not None]
    for _, prompt in known:
        found = _EMPTY.search(prompt[-200:])
        if found is None or closing_of(found["start"]) != found["end"]:
            continue
        # A role may stand so, too, but then it does in every prompt.
        if not found["word"] or any(not other.endswith(found[0]) for _, other in known):
            return Markers(found["start"] + found["word"], found["end"])
    for think, prompt in known:
        opening = _last_marker(prompt)
        closing = closing_of(opening.strip())
        plain = probing.answer(CONTENT, tools=tools, think=think) if closing else None
        if plain is None:
            continue
        added = prompt[common_start(prompt, plain.prompt + plain.text) :]
        if opening in added:
            return Markers(opening, closing)
    return None


def _asked_for(probing: Probing) -> tuple[Markers | None, Markers]:
    """From what the template tells a model that is to think."""
    asked = probing.prompt(tools=False, think=True)
    plain = probing.prompt(tools=False)
    if asked is None or plain is None or asked == plain:
        return None, Markers()
    pairs = [Markers(f"<{name}>", f"</{name}>") for name in _PAIR.findall(asked)]
    pairs = [pair for pair in pairs if pair.start + pair.end not in plain]
    if not pairs and len(phrases := _PHRASE.findall(asked)) == 2 and phrases[0] not in plain:
        return Markers(*phrases), Markers()
    if not pairs:
        return None, Markers()
    return pairs[0], pairs[1] if len(pairs) > 1 else Markers()


def _last_marker(prompt: str) -> str:
    """The marker with which a prompt ends, and white space behind it."""
    bare = prompt.rstrip()
    ending = bare[-100:]
    found = [each for each in ANSWERED.finditer(ending) if each.end() == len(ending)]
    return found[-1][0] + prompt[len(bare) :] if found else ""


def closing_of(marker: str) -> str:
    """The marker that closes one, by its looks; empty where they do not tell."""
    if found := re.fullmatch(r"([<\[])([^/<>|\[\]]+)([>\]])", marker):
        return f"{found[1]}/{found[2]}{found[3]}"
    if found := re.fullmatch(r"<\|([^<>|]+)>", marker):
        return f"<{found[1]}|>"
    for start, end in _OPPOSITES:
        if start in marker:
            return marker.replace(start, end)
    return ""


def is_thought(reasoning: Reasoning | None, prompt: str, answer: str, text: str) -> bool:
    """Whether a text stands within the reasoning of an answer."""
    if reasoning is None:
        return False
    before, _, after = answer.partition(text)
    before = prompt + before
    start, end = reasoning.start.strip(), reasoning.end.strip()
    return before.rfind(start) > before.rfind(end) and end in after


def without_reasoning(reasoning: Reasoning | None, prompt: str, text: str) -> str:
    """An answer without an empty piece of reasoning before it."""
    if reasoning is None:
        return text
    start, end = reasoning.start.strip(), reasoning.end.strip()
    rest = text.lstrip()
    if rest.startswith(start):
        rest = rest[len(start) :].lstrip()
    elif not prompt.rstrip().endswith(start):
        return text
    return rest[len(end) :] if rest.startswith(end) else text
