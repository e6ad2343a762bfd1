"""Jinja as chat templates are written in it, rendered by minijinja.

Run as a program, it renders one template in a process with little memory and time. It imports next
to nothing, so that such a process starts quickly.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
from datetime import datetime
from typing import Any

from minijinja import Environment, TemplateError

_NAME = "chat template"
_SAID = 300
"""Characters of an error's text that are passed on."""


class Complaint(Exception):
    """What a template says through `raise_exception`."""


class Broken(Exception):
    """Why a template cannot be rendered. Quotes nothing of what it was given."""


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
        self._source: str | None = source

    def render(self, fuel: int, limit: int, variables: dict[str, Any]) -> str:
        """The text, of at most `limit` characters, made in at most `fuel` steps.

        Raises `Complaint` or `Broken`.
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
            raise Broken("it takes too much memory") from None
        except Exception as error:  # raised in a filter or function that the template called
            raise Broken(f"{type(error).__name__}: {error}"[:_SAID]) from None
        if len(text) > limit:
            raise Broken("it writes far more than it was given")
        return text


def check(source: str) -> None:
    """Raises `Broken` where a source is no Jinja template."""
    try:
        Environment(debug=False).add_template(_NAME, source)
    except TemplateError as error:
        raise Broken(error.message[:_SAID]) from None


def _raise_exception(message: object) -> None:
    raise Complaint(str(message)[:_SAID])


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(value: Any, indent: int | None = None, **options: Any) -> str:
    """JSON as Hugging Face's templates expect it: not escaped for HTML, unlike Jinja's own."""
    known = {name: options[name] for name in ("separators", "sort_keys") if name in options}
    return json.dumps(value, ensure_ascii=bool(options.get("ensure_ascii")), indent=indent, **known)


def _is_iterable(value: object) -> bool:
    """As in Jinja. minijinja takes none for an empty list, then refuses to tell its length."""
    return hasattr(value, "__iter__")


def _main() -> None:
    """Reads one order as JSON, and writes what came of it."""
    order = json.load(sys.stdin)
    limits = {
        resource.RLIMIT_AS: order["memory"],
        resource.RLIMIT_CPU: order["seconds"],
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        with contextlib.suppress(ValueError, OSError):  # macOS knows no limit to address space
            resource.setrlimit(kind, (limit, limit))
    try:
        text = Renderer(order["source"]).render(order["fuel"], order["limit"], order["variables"])
        answer = {"text": text}
    except Complaint as complaint:
        answer = {"complaint": str(complaint)}
    except Broken as broken:
        answer = {"broken": str(broken)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    _main()
