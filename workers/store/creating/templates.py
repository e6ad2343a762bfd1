"""The one place where a template is looked at before it becomes part of a model."""

from __future__ import annotations

from ....protocol.errors import Code, PronkError
from ...conversation.choice import validate

MAX_TEMPLATE = 1024 * 1024
"""Bytes in UTF-8."""


def check_template(source: str) -> None:
    """Raises `PronkError` (invalid_request) for a template that no model can be run with: one that
    is too large, or can be read neither as Go's nor as Jinja.
    """
    size = len(source.encode())
    if size > MAX_TEMPLATE:
        raise PronkError(
            Code.INVALID_REQUEST,
            f"template: it has {size} bytes; the limit is {MAX_TEMPLATE // 1024} KiB",
        )
    validate(source)
