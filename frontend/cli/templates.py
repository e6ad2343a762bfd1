"""`pronk template check`: what a chat template makes of a model's answers, before it is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ...protocol.errors import Code, PronkError

_PANEL = "Models"
_PROGRAM = "pronk.workers.conversation.formats"
"""Run as a process of its own: a template may come from anybody, and the command line has no part
of the workers in it."""

_LONGEST = 2 * 1024 * 1024
_MEMORY = 1024 * 1024 * 1024
_SECONDS = 30
_PATIENCE = 120.0
"""Seconds on the clock, on a machine that may have other things to do."""

template = typer.Typer(no_args_is_help=True, help="Look at chat templates.")


@template.command("check")
def check(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|MODEL",
            help="A template in Jinja or in Go, `-` for one on standard input, or the name of a "
            "model of the running server.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    host: Annotated[
        str | None,
        typer.Option("--host", help="Address or URL of the server; wins over PRONK_HOST."),
    ] = None,
) -> None:
    """Show how a template has a model write reasoning and tool calls, and whether that is read.

    Standard conversations are rendered, and the model's part of them is read
    back. The exit status is 1 when one of them does not come back as it was.
    """
    from .terminal import reporting, say, valid

    with reporting():
        found = _examined(_source(valid(target), host))
        say(json.dumps(found, indent=2, ensure_ascii=False) if as_json else _report(found))
        if not found["passed"]:
            raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    """Adds the commands to the application."""
    app.add_typer(template, name="template", rich_help_panel=_PANEL)


def _source(target: str, host: str | None) -> str:
    """The template in a file, or that of a model. Raises `PronkError`.

    A model's is asked of the server, as `pronk show --template` does: that works for a server on
    another host, too, and no file of a model is opened here.
    """
    from .terminal import read_input

    if target == "-":
        return read_input(_LONGEST)
    path = Path(target)
    if path.is_file():
        return _read(path)
    if path.suffix or os.sep in target:
        looks_like_file = path.suffix in (".jinja", ".jinja2", ".j2", ".tmpl", ".gotmpl", ".txt")
        if looks_like_file or target.startswith((".", os.sep)):
            raise PronkError(Code.NOT_FOUND, f"{target}: no such file")
    from .api import Api
    from .showing import fetch, part_of

    source = part_of(fetch(Api.of(host), target), "template")
    if not source:
        raise PronkError(Code.INVALID_REQUEST, f"{target} has no chat template")
    return source


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_LONGEST + 1)
    except OSError as error:
        raise PronkError(Code.NOT_FOUND, f"{path}: {error.strerror or 'not readable'}") from None
    if len(data) > _LONGEST:
        raise PronkError(Code.TOO_LARGE, f"{path} has more than {_LONGEST // 2**20} MiB")
    return data.decode("utf-8", "replace")


def _examined(source: str) -> dict[str, Any]:
    """What the template's process says. Raises `PronkError`."""
    order = {"memory": _MEMORY, "seconds": _SECONDS, "order": {"source": source}}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-m", _PROGRAM],
            input=json.dumps(order).encode(),
            capture_output=True,
            timeout=_PATIENCE,
        )
        found = json.loads(done.stdout) if done.returncode == 0 else None
    except (subprocess.TimeoutExpired, ValueError):
        found, done = None, None
    if found is None and done and done.returncode > 0 and b"MemoryError" not in done.stderr:
        raise PronkError(
            Code.INTERNAL,
            "looking at the template failed, which is a mistake in Pronk and not in the template",
        )
    if found is None:
        found = {"broken": "it takes too much memory or time"}
    if "broken" in found:
        raise PronkError(Code.INVALID_REQUEST, f"the template cannot be used: {found['broken']}")
    return found


def _report(found: dict[str, Any]) -> str:
    from .wording import aligned

    form = found["format"]
    rows = [
        ("language", {"go": "Go", "jinja": "Jinja"}[found["language"]]),
        ("capabilities", ", ".join(["completion", *found["capabilities"]])),
        *_reasoning(form["reasoning"]),
        *_around("text", form["content"]),
        *_calls(form, found["unread"]),
        ("end of an answer", _quoted(form["end"])),
    ]
    width = max(len(case["case"]) for case in found["cases"]) + 4
    cases = [
        f"    {case['case'].ljust(width)}{case['outcome']}"
        + (f": {case['reason']}" if case["reason"] else "")
        for case in found["cases"]
    ]
    sample = [f"    {line}" for line in found["written"].splitlines()]
    parts = [["  Format", *aligned([row for row in rows if row[1]], margin=4)]]
    if form["calls"] or form["reasoning"]:
        parts.append(["  An answer", *sample] if sample else [])
    parts.append(["  Round trips", *cases])
    return "\n\n".join("\n".join(part) for part in parts if part)


def _reasoning(reasoning: dict[str, Any] | None) -> list[tuple[str, str]]:
    if reasoning is None:
        return []
    how = ["on or off"] if reasoning["switchable"] else []
    how += ["low, medium, high"] if reasoning["levels"] else []
    opens = {"default": "by default", "on": "when it is on", "off": "when it is off"}
    return [
        ("reasoning", _pair(reasoning)),
        ("a request chooses", ", ".join(how) or "nothing"),
        ("opened by the prompt", ", ".join(opens[each] for each in reasoning["opens"])),
    ]


def _calls(form: dict[str, Any], unread: bool) -> list[tuple[str, str]]:
    if form["harmony"]:
        return [("calls", "messages on channels (harmony)")]
    calls = form["calls"]
    if calls is None:
        return [("calls", "not read: nothing tells them from text" if unread else "none")]
    syntaxes = {
        "object": "a JSON object with " + _keys(calls),
        "named": "name, then arguments as a JSON object",
        "tagged": "name, then each argument in tags",
        "python": "as Python writes them",
    }
    how = "name, then arguments as an object" if calls["quote"] else syntaxes[calls["syntax"]]
    rows = [("calls", how + (", in a list" if calls["listed"] else ""))]
    rows += _around("all calls", calls["section"])
    rows += _around("each call", calls["each"])
    if calls["syntax"] in ("named", "tagged"):
        pairs = zip(calls["fields"], calls["between"], strict=True)
        rows.append(("before arguments", _quoted("".join(f"{{{a}}}{b}" for a, b in pairs))))
    if quote := calls["quote"]:
        rows.append(("a text in arguments", f"{_quoted(quote)} … {_quoted(quote)}, keys without"))
    if not any(calls[around]["start"].strip() for around in ("section", "each")):
        rows.append(("announced by", _announced(calls)))
    if parameter := calls["parameter"]:
        texts = (parameter["start"], "{key}", parameter["middle"], "{value}", parameter["end"])
        rows.append(("an argument", _quoted("".join(texts))))
    rows += [
        ("several calls", "yes" if calls["several"] else "no"),
        ("text beside calls", "yes" if form["mixed"] else "no"),
        ("earlier calls", "" if calls["rendered"] else "not written by the template"),
    ]
    return rows


def _announced(calls: dict[str, Any]) -> str:
    """What a call begins with that no marker stands before."""
    if calls["syntax"] == "named":
        return "nothing but the name of a tool of the request, where an answer begins"
    return "nothing: one is a call if it calls a tool of the request"


def _keys(calls: dict[str, Any]) -> str:
    if not calls["name"]:
        return "the name as the key of the arguments"
    paths = [".".join(calls[part]) for part in ("name", "arguments", "id") if calls[part]]
    return ", ".join(paths) + (" (arguments as text)" if calls["textual"] else "")


def _around(what: str, markers: dict[str, str]) -> list[tuple[str, str]]:
    return [(what, _pair(markers))] if markers["start"].strip() or markers["end"].strip() else []


def _pair(markers: dict[str, str]) -> str:
    return f"{_quoted(markers['start']) or 'nothing'} … {_quoted(markers['end']) or 'nothing'}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
