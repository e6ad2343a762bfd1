"""What goes wrong with a Go template."""

from __future__ import annotations


class GoTemplateError(Exception):
    """A template that cannot be read, or that fails as it is rendered.

    The text is one sentence with the template's line. It may quote the template, and never what the
    template was given.
    """

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


class Fault(Exception):
    """A reason without a line yet: whoever knows the line makes a `GoTemplateError` of it."""
