"""The one place where a template is looked at before it becomes part of a model."""

from __future__ import annotations

from ....protocol.errors import Code, PronkError
from ..looking.inspection import plain
from ..looking.looker import Looker

MAX_TEMPLATE = 1024 * 1024
"""Bytes in UTF-8."""


async def check_template(source: str, looker: Looker) -> None:
    """Raises `PronkError` (invalid_request) for a template that no model can be run with: one that
    is too large, that can be read neither as Go's nor as Jinja, or that whoever tries it dies of.

    It is tried as it is for the first question about the model, which will not have to do it again.
    """
    size = len(source.encode())
    if size > MAX_TEMPLATE:
        raise PronkError(
            Code.INVALID_REQUEST,
            f"template: it has {size} bytes; the limit is {MAX_TEMPLATE // 1024} KiB",
        )
    if reason := (await looker.template(source)).get("broken"):
        raise PronkError(Code.INVALID_REQUEST, f"template: it cannot be used: {plain(reason)}")
