"""Writes an answer the way a format has it.

For the templates that leave out the calls of earlier messages: what is written here can stand in
the text of such a message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .description import Calls, Format, Parameter, Syntax
from .loose import write_loose
from .offered import kind_of
from .said import Call


def write_answer(
    form: Format, content: str = "", thinking: str = "", calls: Sequence[Call] = ()
) -> str:
    """The text of an answer. Nothing is written for which the format has no place."""
    parts: list[str] = []
    if thinking and form.reasoning:
        parts.append(f"{form.reasoning.start}{thinking}{form.reasoning.end}")
    if content:
        parts.append(f"{form.content.start}{content}{form.content.end}")
    if calls and form.calls:
        parts.append(write_calls(form.calls, calls))
    return "".join(parts)


def write_calls(form: Calls, calls: Sequence[Call]) -> str:
    """The text of calls."""
    each = [
        f"{form.each.start}{_written(form, call, index)}{form.each.end}"
        for index, call in enumerate(calls)
    ]
    if form.listed:
        separator = form.separator if "," in form.separator else ", "
        inner = f"[{separator.join(each)}]"
    else:
        inner = form.separator.join(each)
    return f"{form.section.start}{inner}{form.section.end}"


def _written(form: Calls, call: Call, index: int) -> str:
    match form.syntax:
        case Syntax.OBJECT:
            return _json(_object(form, call))
        case Syntax.PYTHON:
            inner = ", ".join(f"{key}={_python(value)}" for key, value in call.arguments.items())
            return f"{call.name}({inner})"
        case Syntax.NAMED:
            if form.quote:
                return _header(form, call, index) + write_loose(call.arguments, form.quote)
            return f"{_header(form, call, index)}{_json(call.arguments)}"
        case Syntax.TAGGED:
            parameter = form.parameter
            assert parameter is not None
            inner = parameter.separator.join(
                _argument(parameter, key, value) for key, value in call.arguments.items()
            )
            return _header(form, call, index) + inner


def _object(form: Calls, call: Call) -> dict[str, Any]:
    if not form.name:
        return {call.name: call.arguments}
    result: dict[str, Any] = dict(form.constants)
    _put(result, form.name, call.name)
    _put(result, form.arguments, _json(call.arguments) if form.textual else call.arguments)
    if form.id:
        _put(result, form.id, call.id)
    return result


def _put(target: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for key in path[:-1]:
        target = target.setdefault(key, {})
    target[path[-1]] = value


def _header(form: Calls, call: Call, index: int) -> str:
    values = {"name": call.name, "id": call.id, "index": str(index)}
    pairs = zip(form.fields, form.between, strict=True)
    return "".join(values[field] + text for field, text in pairs)


def _argument(parameter: Parameter, key: str, value: Any) -> str:
    is_text = isinstance(value, str)
    middle = parameter.middle_of(kind_of(value))
    written = value if is_text and not parameter.quoted else _json(value)
    return f"{parameter.start}{key}{middle}{written}{parameter.end}"


def _python(value: Any) -> str:
    return repr(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
