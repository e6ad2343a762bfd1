"""A Go template: read once, rendered as often as wanted, by any thread."""

from __future__ import annotations

from typing import Any

from .compiler import Compiler
from .errors import Fault, GoTemplateError
from .functions import FUNCTIONS
from .nodes import Block, names_in
from .parser import MAIN, read
from .running import Limits, Run


class Template:
    """A template and those that it defines."""

    def __init__(self, templates: dict[str, Block]) -> None:
        """`templates`: what `read` returns, perhaps changed."""
        self.templates = templates
        self._step = Compiler(templates).steps[MAIN]

    @classmethod
    def parse(cls, source: str) -> Template:
        """The template of a source. Raises `GoTemplateError`."""
        try:
            return cls(read(source, FUNCTIONS))
        except RecursionError:
            raise GoTemplateError(1, "it is nested too deeply") from None

    @property
    def names(self) -> frozenset[str]:
        """The fields and variables (with their dollar) that it mentions anywhere."""
        return frozenset(n for block in self.templates.values() for n in names_in(block))

    def render(self, data: Any, limits: Limits) -> str:
        """The text that it makes of `data`, which is of the types in `values`.

        Raises `GoTemplateError`, whose text holds nothing of `data`.
        """
        run = Run(limits)
        self.render_to(run, data)
        return run.text()

    def render_to(self, run: Run, data: Any) -> None:
        """Adds that text to what was written before, within the bounds of both."""
        run.begin(data)
        try:
            self._step(run, data)
        except Fault as fault:
            raise GoTemplateError(1, str(fault)) from None
        except RecursionError:
            raise GoTemplateError(1, "it is nested too deeply") from None
