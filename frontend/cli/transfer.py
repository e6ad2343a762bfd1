"""`pronk pull` and `pronk push`: models to and from a registry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...protocol.errors import Code, PronkError
from .api import Api
from .progress import Progress, follow


def pull(api: Api, name: str, insecure: bool, shown: Progress) -> None:
    """Has the server fetch a model. Raises `PronkError` with the reason when it does not."""
    parts = api.streamed(lambda: api.client.pull(name, insecure=insecure, stream=True))
    _follow(parts, shown, f"what came is kept, `pronk pull {name}` goes on from there")


def push(api: Api, name: str, insecure: bool, shown: Progress) -> None:
    """Has the server send a model to its registry. Raises `PronkError` as `pull` does."""
    parts = api.streamed(lambda: api.client.push(name, insecure=insecure, stream=True))
    _follow(parts, shown, f"`pronk push {name}` sends what is missing")


def _follow(parts: Iterable[Any], shown: Progress, again: str) -> None:
    if not follow((part.model_dump(exclude_none=True) for part in parts), shown):
        raise PronkError(Code.UNAVAILABLE, f"the server did not come to an end; {again}")
