"""What `pronk run` is to do: answer once, print a vector, or talk."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Any

from ....protocol.durations import parse_duration
from ....protocol.errors import Code, PronkError
from ..api import Api
from ..terminal import is_terminal, read_input, say
from .session import Session

MAX_INPUT = 64 * 2**20
"""Most bytes of standard input: what the server takes for a request, if its settings say nothing
else."""

THINK_LEVELS = ("max", "high", "medium", "low")


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line says."""

    model: str
    prompts: list[str] = field(default_factory=list[str])
    format: str | None = None
    system: str | None = None
    keep_alive: str | None = None
    verbose: bool = False
    wraps: bool = True
    think: bool | str | None = None
    hides_thinking: bool = False
    dimensions: int | None = None
    truncate: bool | None = None
    insecure: bool = False


def run(api: Api, wish: Wish) -> None:
    """Does it. Raises `PronkError` with what was wrong."""
    session = Session(
        api,
        wish.model,
        system=wish.system,
        format=read_format(wish.format),
        keep_alive=_keep_alive(wish.keep_alive),
        think=_think(wish.think),
        hides_thinking=wish.hides_thinking,
        verbose=wish.verbose,
        wraps=wish.wraps,
        insecure=wish.insecure,
    )
    piped = not is_terminal(sys.stdin)
    before = read_input(MAX_INPUT) if piped else ""
    shown = session.fetch()
    capabilities = shown.get("capabilities") or []
    # Only what a person wrote names pictures: text that is piped may be anybody's.
    own, images = session.look(" ".join(wish.prompts))
    prompt = " ".join(text for text in (before, own) if text)
    if "embedding" in capabilities and "completion" not in capabilities:
        _embed(session, prompt, wish)
    elif prompt or images:
        session.ask(prompt, images)
    elif piped:
        session.load()
    else:
        from .interactive import talk

        session.load()
        talk(session)


def read_format(text: str | None) -> str | dict[str, Any] | None:
    """`json`, or a JSON schema. Raises `PronkError` for anything else."""
    if not text:
        return None
    if text.strip() == "json":
        return "json"
    try:
        schema = json.loads(text)
        if isinstance(schema, dict):
            return schema
    except ValueError:
        pass
    raise PronkError(Code.INVALID_REQUEST, "a format is `json`, or a JSON schema as an object")


def _keep_alive(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        parse_duration(text)
    except ValueError as error:
        raise PronkError(Code.INVALID_REQUEST, f"--keepalive {text}: {error}") from None
    return text


def _think(wanted: bool | str | None) -> bool | str | None:
    if not isinstance(wanted, str):
        return wanted
    match wanted.strip().lower():
        case "true" | "false" as truth:
            return truth == "true"
        case level if level in THINK_LEVELS:
            return level
        case _:
            raise PronkError(
                Code.INVALID_REQUEST, "--think is true, false, high, medium, low or max"
            )


def _embed(session: Session, text: str, wish: Wish) -> None:
    if not text:
        raise PronkError(
            Code.INVALID_REQUEST,
            f"'{session.model}' is a model for embeddings and needs a text: "
            f'pronk run {session.model} "your text here"',
        )
    say(json.dumps(session.embed(text, wish.dimensions, wish.truncate)))
