"""Jinja as chat templates are written in it, rendered by minijinja.

Run as a program, it renders one template in a process with little memory and time. It imports next
to nothing, so that such a process starts quickly.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

from minijinja import Environment, TemplateError

from .confinement import main

_NAME = "chat template"
_SAID = 300
"""Characters of an error's text that are passed on."""


_GENERATION = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")
"""Marks what the model says itself; for training only, and no tag that Jinja knows."""
_APPENDING = re.compile(
    r"(\{%[-+]?\s*)(?:do\s+|set\s+\w+\s*=\s*)([\w.]+)\.append\((.*?)\)(\s*[-+]?%\})"
)
_POPPING = re.compile(r"(\{%[-+]?\s*set\s+\w+\s*=\s*)([\w.]+)\.pop\(0\)(\s*[-+]?%\})")


class Complaint(Exception):
    """What a template says through `raise_exception`."""


class Broken(Exception):
    """Why a template cannot be rendered. Quotes nothing of what it was given."""


class Spent(Broken):
    """It took too much memory or time."""


class Renderer:
    """One template. For one thread at a time."""

    def __init__(self, source: str) -> None:
        self._environment = Environment(
            debug=False,  # its messages would quote the conversation
            trim_blocks=True,
            lstrip_blocks=True,
            pycompat=True,
        )
        self._environment.add_global("raise_exception", _raise_exception)
        self._environment.add_global("strftime_now", _strftime_now)
        self._environment.add_filter("tojson", _tojson)
        self._environment.add_test("iterable", _is_iterable)
        self._source: str | None = _rewritten(source)

    def render(self, fuel: int, limit: int, variables: dict[str, Any]) -> str:
        """The text, of at most `limit` characters, made in at most `fuel` steps.

        Raises `Complaint` or `Broken`; `Spent` where Python's own memory ended.
        """
        self._environment.fuel = fuel
        try:
            if self._source is not None:
                self._environment.add_template(_NAME, self._source)
                self._source = None
            text = self._environment.render_template(_NAME, **variables)
        except Complaint:
            raise
        except TemplateError as error:
            raise Broken(error.message[:_SAID]) from None
        except MemoryError:
            raise Spent("it takes too much memory or time") from None
        except Exception as error:  # raised in a filter or function that the template called
            raise Broken(f"{type(error).__name__}: {error}"[:_SAID]) from None
        if len(text) > limit:
            raise Broken("it writes far more than it was given")
        return text


def check(source: str) -> None:
    """Raises `Broken` where a source is no Jinja template."""
    try:
        Environment(debug=False).add_template(_NAME, _rewritten(source))
    except TemplateError as error:
        raise Broken(error.message[:_SAID]) from None


def _raise_exception(message: object) -> None:
    raise Complaint(str(message)[:_SAID])


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it: not escaped for HTML, unlike Jinja's own."""
    if ensure_ascii is not True and ensure_ascii is not False:
        ensure_ascii, indent = False, ensure_ascii  # as in Jinja's own, the one argument by place
    if separators is not None:
        separators = tuple(separators)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _is_iterable(value: object) -> bool:
    """As in Jinja. minijinja takes none for an empty list, then refuses to tell its length."""
    return hasattr(value, "__iter__")


def _rewritten(source: str) -> str:
    """A template in the words that minijinja knows.

    Its lists do not change: what appends to one, or takes its first item, makes a new one.
    """
    if "generation" in source:
        source = _GENERATION.sub(
            lambda tag: f"{{%{tag[1]} {'endif' if tag[2] else 'if true'} {tag[3]}%}}", source
        )
    if ".append(" in source:
        source = _APPENDING.sub(r"\1set \2 = \2 + [\3]\4", source)
    if ".pop(0)" in source:
        source = _POPPING.sub(r"\1\2[0] %}{%- set \2 = \2[1:]\3", source)
    return source


def answer_of(renderer: Renderer, order: dict[str, Any]) -> dict[str, Any]:
    """What a confined program answers to an order with `fuel`, `limit` and `variables`: a `text`, a
    `complaint`, or why the template is `broken` or has `spent` what it had.
    """
    try:
        text = renderer.render(order["fuel"], order["limit"], order["variables"])
    except Complaint as complaint:
        return {"complaint": str(complaint)}
    except Spent as spent:
        return {"spent": str(spent)}
    except Broken as broken:
        return {"broken": str(broken)}
    return {"text": text}


if __name__ == "__main__":
    main(lambda order: answer_of(Renderer(order["source"]), order))
