"""`pronk list`, `ps`, `cp`, `rm` and `stop`: what is in the library, and what of it is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ...protocol.errors import Code, PronkError
from . import wording
from .api import Api
from .terminal import say, tell

if TYPE_CHECKING:
    from ollama import ListResponse, ProcessResponse

_ID = 12
"""Digits of a digest that are shown."""


def show_list(api: Api, prefix: str, as_json: bool) -> None:
    """Prints the models of the library whose names begin with `prefix`."""
    if as_json:
        _say_models(api.get("/api/tags"), prefix)
        return
    with api.errors():
        models = [model for model in api.client.list().models if _begins(model.model or "", prefix)]
    rows = [_list_row(model) for model in models]
    say(wording.table(("NAME", "ID", "SIZE", "MODIFIED"), rows))


def show_loaded(api: Api, as_json: bool) -> None:
    """Prints the models that are loaded."""
    if as_json:
        _say_models(api.get("/api/ps"), "")
        return
    with api.errors():
        models = api.client.ps().models
    now = datetime.now(UTC)
    rows = [_loaded_row(model, now) for model in models]
    say(wording.table(("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL"), rows))


def copy(api: Api, source: str, destination: str) -> None:
    """Gives a model one more name."""
    with missing(source), api.errors():
        api.client.copy(source, destination)
    say(f"copied '{source}' to '{destination}'")


def remove(api: Api, names: list[str]) -> int:
    """Deletes models, and says of each what became of it. Returns how many were not deleted."""
    failed = 0
    for name in names:
        try:
            with missing(name, fetch=False), api.errors():
                api.client.delete(name)
        except PronkError as error:
            if error.code is Code.UNAVAILABLE:
                raise
            failed += 1
            tell(f"Error: {error.message}")
        else:
            say(f"deleted '{name}'")
    return failed


def stop(api: Api, name: str) -> None:
    """Ends a model's stay in memory; requests that it has are answered first."""
    with missing(name, fetch=False):
        api.post("/api/generate", {"model": name, "keep_alive": 0, "stream": False})


@contextmanager
def missing(name: str, *, fetch: bool = True) -> Iterator[None]:
    """Says of a model that is not there what to do on this command line."""
    try:
        yield
    except PronkError as error:
        if error.code is not Code.NOT_FOUND:
            raise
        advice = "`pronk list` shows what is there"
        if fetch:
            advice += f", and `pronk pull {name}` fetches it"
        raise PronkError(Code.NOT_FOUND, f"model '{name}' not found; {advice}") from None


def processor(total: int, on_gpu: int) -> str:
    """How much of a model lies where."""
    if on_gpu <= 0:
        return "100% CPU"
    if total <= 0 or on_gpu > total:
        return "Unknown"
    if on_gpu == total:
        return "100% GPU"
    share = round(100 * (total - on_gpu) / total)
    return f"{share}%/{100 - share}% CPU/GPU"


def _list_row(model: ListResponse.Model) -> tuple[str, str, str, str]:
    modified = wording.age(model.modified_at)
    return model.model or "", _id(model.digest), wording.size(model.size or 0), modified


def _loaded_row(model: ProcessResponse.Model, now: datetime) -> tuple[str, ...]:
    total = model.size or 0
    ends = model.expires_at
    if ends and ends.tzinfo is None:
        ends = ends.replace(tzinfo=UTC)
    return (
        model.name or model.model or "",
        _id(model.digest),
        wording.size(total),
        processor(total, model.size_vram or 0),
        str(model.context_length or ""),
        "Stopping..." if ends and ends < now else wording.age(ends, now),
    )


def _id(digest: str | None) -> str:
    return (digest or "").removeprefix("sha256:")[:_ID]


def _begins(name: str, prefix: str) -> bool:
    return name.lower().startswith(prefix.lower())


def _say_models(found: dict[str, Any], prefix: str) -> None:
    models = found.get("models")
    if not isinstance(models, list):
        raise PronkError(Code.INTERNAL, "the server's list of models is none")
    chosen = [
        model
        for model in models
        if isinstance(model, dict) and _begins(str(model.get("name", "")), prefix)
    ]
    say(json.dumps(found | {"models": chosen}, indent=2, ensure_ascii=False))
