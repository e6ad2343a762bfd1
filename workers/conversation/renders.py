"""Where a Jinja template is rendered: in this process, or in one that is confined.

Rendering takes whatever memory the template wants, and holds Python's lock all the while: what has
streams to serve never renders a stranger's template itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import confined, jinja, render_loop
from .jinja import Broken, Complaint, Renderer, Spent

if TYPE_CHECKING:  # the program that tries templates starts quickly without it
    from .coprocess import Coprocesses

Render = Callable[[int, int, dict[str, Any]], str]
"""Makes of a number of steps, a number of characters and the variables a text, which has at most so
many characters and took at most so many steps. May be called by several threads at once.

Raises `Complaint`, or `Broken`: `Spent` where bounds of memory and time ended it.
"""

LOOP = render_loop.__name__
"""The program of the processes in which `lastingly` renders."""


def here(source: str) -> Render:
    """Renders in this process, which the template may take down or hold up."""
    of_thread = threading.local()

    def render(fuel: int, limit: int, variables: dict[str, Any]) -> str:
        renderer: Renderer | None = getattr(of_thread, "renderer", None)
        if renderer is None:
            renderer = of_thread.renderer = Renderer(source)
        return renderer.render(fuel, limit, variables)

    return render


def once(source: str) -> Render:
    """Renders in a process of its own each time: for a template that is hardly used again."""

    def render(fuel: int, limit: int, variables: dict[str, Any]) -> str:
        order = {"source": source, "fuel": fuel, "limit": limit, "variables": variables}
        try:
            answer = confined.run(jinja.__name__, order, given=_given(limit, source))
        except confined.TooMuch as reason:
            raise Spent(str(reason)) from None
        return _text(answer)

    return render


def lastingly(source: str, processes: Coprocesses) -> Render:
    """Renders in `processes` of the program `LOOP`, which are this template's alone from now on."""
    processes.begin({"source": source})

    def render(fuel: int, limit: int, variables: dict[str, Any]) -> str:
        order = {"fuel": fuel, "limit": limit, "variables": variables}
        try:
            answer = processes.ask(order, given=_given(limit, source))
        except confined.TooMuch as reason:
            raise Spent(str(reason)) from None
        return _text(answer)

    return render


def _given(limit: int, source: str) -> int:
    return limit // 8 + len(source)


def _text(answer: dict[str, Any]) -> str:
    if "complaint" in answer:
        raise Complaint(answer["complaint"])
    if "spent" in answer:
        raise Spent(answer["spent"])
    if "broken" in answer:
        raise Broken(answer["broken"])
    return answer["text"]
