"""The program of a process that stays, and renders one template again and again.

Its first order has the template's source.
"""

from __future__ import annotations

from typing import Any

from .confinement import Work, serve
from .jinja import Renderer, answer_of


def _begin(first: dict[str, Any]) -> Work:
    renderer = Renderer(first["source"])
    return lambda order: answer_of(renderer, order)


if __name__ == "__main__":
    serve(_begin)
