"""What a template takes, and conversations brought into a form that it takes.

Templates disagree about who may speak when, and about how calls of tools are written down. A
conversation comes in one form, Ollama's; what its template cannot take in that form it gets in
another one that says the same. Nothing is lost on the way but what the form has no place for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from .formats.description import Calls
from .formats.said import Call
from .formats.writing import write_calls
from .turns import Turn

_APART = "\n\n"
_SHORT = 9


@dataclass(frozen=True, slots=True)
class Traits:
    """What a template takes. Without arguments: one that takes everything."""

    system: Literal["anywhere", "first", "none"] = "anywhere"
    """Where it takes system messages: at the beginning it takes one."""
    alternates: bool = False
    """Whether it refuses, or loses, neighbours of one role."""
    user_first: bool = False
    """Whether it refuses, or loses, an assistant's message before the first user's."""
    listed_content: bool = False
    """Whether it takes text only as `[{"type": "text", "text": …}]`."""
    empty_part: bool = False
    """Whether even no text is a part of such a list."""
    calls: bool = True
    """Whether it writes calls of tools."""
    results: bool = True
    """Whether it knows the role of tools."""
    lone_results: bool = True
    """Whether it takes a result without a call before it."""
    single_calls: bool = False
    """Whether it takes only one call at a time."""
    arguments_as_text: bool = False
    """Whether it takes a call's arguments as JSON text and not as an object."""
    short_ids: bool = False
    """Whether a call's id must be nine letters and digits."""
    named_ids: bool = False
    """Whether it writes a call's id and not its name, so that the name must stand in the id."""
    null_content: bool = False
    """Whether a message with calls and no text has null as its content."""
    thinking_alone: bool = False
    """Whether it refuses thinking in a message that has calls and text."""
    empty: bool = True
    """Whether it takes a conversation without messages."""
    system_alone: bool = True
    """Whether it takes one of nothing but a system message."""
    tools: bool = True
    """Whether it writes tools that are offered."""
    switches: bool = False
    """Whether its prompt depends on whether the model is to think."""
    opens: str = ""
    """The marker that begins reasoning, where prompts may end with that; else empty."""
    closes: str = ""
    """The marker that ends such reasoning."""


TAKES_ALL = Traits()


def adapted(turns: Iterable[Turn], traits: Traits, notation: Calls | None = None) -> list[Turn]:
    """The conversation in turns that a template takes. Calls that it does not write itself stand in
    the text, in the model's own `notation` where that is known.
    """
    turns = identified(turns, traits)
    if not (traits.calls and traits.results):
        turns = [_plainly(turn, traits, notation) for turn in turns]
    if traits.system != "anywhere":
        turns = _folded(turns, first=traits.system == "first")
    if traits.thinking_alone:
        turns = [
            replace(t, thinking="") if t.content and t.thinking and t.tool_calls else t
            for t in turns
        ]
    if traits.single_calls:
        turns = _one_by_one(turns)
    if traits.alternates:
        turns = _joined(turns)
    if traits.user_first:
        first = next((i for i, turn in enumerate(turns) if turn.role != "system"), None)
        if first is not None and turns[first].role != "user":
            turns.insert(first, Turn("user", ""))
    silent = all(turn.role == "system" for turn in turns)
    if silent and not (traits.system_alone if turns else traits.empty):
        turns.append(Turn("user", ""))
    return turns


def messages_of(turns: Iterable[Turn], traits: Traits) -> list[dict[str, Any]]:
    """Turns as Hugging Face's templates are given them."""
    return [_message(turn, traits) for turn in turns]


def _message(turn: Turn, traits: Traits) -> dict[str, Any]:
    content: Any = turn.content
    if traits.listed_content:
        content = [{"type": "text", "text": content}] if content or traits.empty_part else []
    message: dict[str, Any] = {"role": turn.role, "content": content}
    if turn.thinking:
        message |= {"reasoning_content": turn.thinking, "thinking": turn.thinking}
    if turn.tool_calls:
        message["tool_calls"] = [_call(call, traits) for call in turn.tool_calls]
        if traits.null_content and not turn.content:
            message["content"] = None
    if turn.role == "tool":
        if turn.tool_name:
            message["name"] = turn.tool_name
        message["tool_call_id"] = turn.tool_call_id
    return message


def _call(call: Mapping[str, Any], traits: Traits) -> dict[str, Any]:
    arguments = _arguments(call)
    if traits.arguments_as_text:
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {
        "id": call.get("id") or "",
        "type": "function",
        "function": {"name": _name(call), "arguments": arguments},
    }


def _function(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function")
    return function if isinstance(function, Mapping) else {}


def _name(call: Mapping[str, Any]) -> str:
    return str(_function(call).get("name") or "")


def _arguments(call: Mapping[str, Any]) -> Any:
    """As an object, where they came as text, too."""
    arguments = _function(call).get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return arguments
    return {} if arguments is None else arguments


def identified(turns: Iterable[Turn], traits: Traits) -> list[Turn]:
    """Every call with an id, and every result with that of its call and its tool's name.

    Results without an id belong to the first call of their tool that has no result yet, or where
    they name none, to the first one.
    """
    changed: list[Turn] = []
    waiting: list[tuple[str, str, str]] = []  # the id that came, the one that goes on, the name
    count = 0
    for turn in turns:
        if turn.tool_calls:
            calls: list[Mapping[str, Any]] = []
            for call in turn.tool_calls:
                came = str(call.get("id") or "")
                id_ = came
                if not came or not _is_taken(came, _name(call), traits):
                    id_ = _new_id(count, _name(call), traits)
                count += 1
                waiting.append((came, id_, _name(call)))
                calls.append({**call, "id": id_})
            turn = replace(turn, tool_calls=calls)
        elif turn.role == "tool":
            of = _call_of(turn, waiting)
            if of:
                waiting.remove(of)
                turn = replace(turn, tool_call_id=of[1], tool_name=turn.tool_name or of[2])
            elif not traits.lone_results:
                turn = _as_user(turn)
            elif not turn.tool_call_id or (traits.short_ids and not _is_short(turn.tool_call_id)):
                turn = replace(turn, tool_call_id=f"call{count:0{_SHORT - 4}d}")
                count += 1
        changed.append(turn)
    return changed


def _is_taken(id_: str, name: str, traits: Traits) -> bool:
    """Whether a call of that name may have that id."""
    return (not traits.short_ids or _is_short(id_)) and (not traits.named_ids or name in id_)


def _new_id(count: int, name: str, traits: Traits) -> str:
    return f"functions.{name}:{count}" if traits.named_ids else f"call{count:0{_SHORT - 4}d}"


def _is_short(id_: str) -> bool:
    return len(id_) == _SHORT and id_.isascii() and id_.isalnum()


def _call_of(turn: Turn, waiting: Sequence[tuple[str, str, str]]) -> tuple[str, str, str] | None:
    if turn.tool_call_id:
        return next((each for each in waiting if each[0] == turn.tool_call_id), None)
    named = (each for each in waiting if each[2] == turn.tool_name)
    if turn.tool_name:
        return next(named, None)
    return waiting[0] if waiting else None


def _plainly(turn: Turn, traits: Traits, notation: Calls | None) -> Turn:
    """A turn without what a template has no place for: calls as text, results as a user's."""
    if turn.tool_calls and not traits.calls:
        calls = [
            Call(_name(call), _arguments(call), str(call.get("id") or ""))
            for call in turn.tool_calls
        ]
        if notation and all(isinstance(call.arguments, dict) for call in calls):
            written = [write_calls(notation, calls)]
        else:
            plain = [{"name": call.name, "arguments": call.arguments} for call in calls]
            written = [json.dumps(call, ensure_ascii=False) for call in plain]
        content = _APART.join(filter(None, [turn.content, *written]))
        return replace(turn, content=content, tool_calls=())
    if turn.role == "tool" and not traits.results:
        return _as_user(turn)
    return turn


def _as_user(turn: Turn) -> Turn:
    """A tool's result in a user's message."""
    name = f"Result of {turn.tool_name}:\n" if turn.tool_name else "Result:\n"
    return Turn("user", name + turn.content)


def _folded(turns: Sequence[Turn], *, first: bool) -> list[Turn]:
    """System messages put before the next user's words. With `first`, those at the beginning are
    one message of their own.
    """
    start = next((i for i, turn in enumerate(turns) if turn.role != "system"), len(turns))
    folded: list[Turn] = []
    waiting = [turn.content for turn in turns[:start] if turn.content]
    if first and start:
        folded, waiting = [Turn("system", _APART.join(waiting))], []
    for turn in turns[start:]:
        if turn.role == "system":
            waiting += [turn.content] if turn.content else []
        elif turn.role == "user" and waiting:
            folded.append(
                replace(turn, content=_APART.join(filter(None, [*waiting, turn.content])))
            )
            waiting = []
        else:
            folded.append(turn)
    if waiting:
        spoken = Turn("user", _APART.join(waiting))
        # Before an answer that was begun and is to be continued.
        last = folded[-1:] if folded and _is_begun(folded[-1]) else []
        folded = [*folded[: len(folded) - len(last)], spoken, *last]
    return folded


def _is_begun(turn: Turn) -> bool:
    return turn.role == "assistant" and not turn.tool_calls


def _one_by_one(turns: Sequence[Turn]) -> list[Turn]:
    """Each call in a message of its own, with its result behind it."""
    changed: list[Turn] = []
    index = 0
    while index < len(turns):
        turn = turns[index]
        index += 1
        if len(turn.tool_calls) < 2:
            changed.append(turn)
            continue
        results: list[Turn] = []
        while index < len(turns) and turns[index].role == "tool":
            results.append(turns[index])
            index += 1
        for place, call in enumerate(turn.tool_calls):
            one = replace(turn, tool_calls=[call])
            changed.append(replace(one, content="", thinking="") if place else one)
            its = [result for result in results if result.tool_call_id == call.get("id")]
            results = [result for result in results if result not in its]
            changed += its
        changed += results
    return changed


def _joined(turns: Iterable[Turn]) -> list[Turn]:
    """Neighbours of one role as one, except results of tools and calls with them in between."""
    joined: list[Turn] = []
    for turn in turns:
        last = joined[-1] if joined else None
        if last and last.role == turn.role != "tool" and not (last.tool_calls and turn.tool_calls):
            joined[-1] = replace(
                turn,
                content=_APART.join(filter(None, [last.content, turn.content])),
                thinking=_APART.join(filter(None, [last.thinking, turn.thinking])),
                tool_calls=[*last.tool_calls, *turn.tool_calls],
            )
        else:
            joined.append(turn)
    return joined
