"""The commands, each a thin function: what it needs is imported when it is called."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from ...protocol.errors import PronkError
from ...protocol.messages.control import DrainKind
from . import models as model_commands
from . import templates as template_commands

app = typer.Typer(
    name="pronk",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A model server for shared hosts that speaks the Ollama HTTP API.",
    epilog="Settings are environment variables: see `pronk settings`.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"pronk {version('pronk')}")
        raise typer.Exit


@app.callback()
def _pronk(
    version: Annotated[
        bool,
        typer.Option(
            "-v", "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


def _fail(error: PronkError) -> typer.Exit:
    typer.echo(f"pronk: {error.message}", err=True)
    return typer.Exit(1)


model_commands.register(app)
template_commands.register(app)

_SERVER, _HOSTS = "Server", "Hosts"


@app.command(rich_help_panel=_SERVER)
def serve(
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on, such as 0.0.0.0:11434; wins over PRONK_HOST."),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(help="Directory of the model library; wins over PRONK_MODELS."),
    ] = None,
) -> None:
    """Run the server in the foreground; Ctrl-C ends it.

    Prints one line when it is ready. Logs are kept in the folder `logs` of PRONK_STATE.
    """
    from .serve import become_supervisord

    for variable, value in (("PRONK_HOST", host), ("PRONK_MODELS", models)):
        if value is not None:
            os.environ[variable] = value
    try:
        become_supervisord()
    except PronkError as error:
        raise _fail(error) from None


@app.command(rich_help_panel=_HOSTS)
def worker(
    join: Annotated[
        str,
        typer.Option(
            help="Address of the other host's scheduler, such as gpu-host:11500; wins over "
            "PRONK_SCHEDULER."
        ),
    ] = "",
    keys: Annotated[
        str | None,
        typer.Option(help="Directory of the keys; wins over PRONK_KEYS."),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(help="Directory of this host's model library; wins over PRONK_MODELS."),
    ] = None,
) -> None:
    """Run this host's workers in the foreground for the server of another host; Ctrl-C ends them.

    There are PRONK_WORKERS of them. The other host has to listen on PRONK_LISTEN_TCP, and each of
    the two has to have the other's public key: see `pronk keys create`.
    """
    from .serve import become_supervisord

    values = (("PRONK_SCHEDULER", join or None), ("PRONK_KEYS", keys), ("PRONK_MODELS", models))
    for variable, value in values:
        if value is not None:
            os.environ[variable] = value
    try:
        become_supervisord(workers_only=True)
    except PronkError as error:
        raise _fail(error) from None


app.command("start", hidden=True)(serve)


@app.command("help", hidden=True)
def show_help(
    context: typer.Context, words: Annotated[list[str] | None, typer.Argument()] = None
) -> None:
    """Show what a command does, as `--help` behind it."""
    assert context.parent
    app(args=[*(words or []), "--help"], prog_name=context.parent.info_name)


_keys = typer.Typer(no_args_is_help=True, help="Keys with which hosts know each other.")
app.add_typer(_keys, name="keys", rich_help_panel=_HOSTS)

_KeysDirectory = Annotated[
    str | None, typer.Option("--keys", help="Directory of the keys; wins over PRONK_KEYS.")
]


@_keys.command("create")
def create_keys(
    name: Annotated[
        str, typer.Argument(help="`server` on the host of the scheduler, else this host's name.")
    ],
    directory: _KeysDirectory = None,
) -> None:
    """Make this host's keys: a secret file that stays here, and a public one for other hosts."""
    from .keys import create

    try:
        typer.echo(create(name, directory))
    except PronkError as error:
        raise _fail(error) from None


@_keys.command("list")
def list_keys(directory: _KeysDirectory = None) -> None:
    """Show this host's keys, and whom it knows."""
    from .keys import describe

    try:
        typer.echo(describe(directory))
    except PronkError as error:
        raise _fail(error) from None


@app.command(rich_help_panel=_SERVER)
def demo(
    prompt: Annotated[
        str, typer.Argument(help="What to ask the demo model.")
    ] = "Why is the sky blue?",
) -> None:
    """Start a server of its own, ask the built-in model one question, and end everything."""
    from .demo import run

    try:
        run(prompt)
    except PronkError as error:
        raise _fail(error) from None


@app.command(rich_help_panel=_SERVER)
def settings() -> None:
    """Print every setting: its variable, its value here, its default, and what it is for."""
    from ...protocol.settings import load_settings
    from .documentation import describe

    try:
        typer.echo(describe(load_settings()))
    except PronkError as error:
        raise _fail(error) from None


@app.command(rich_help_panel=_SERVER)
def status() -> None:
    """List the running server's frontends and workers, and what each of them does.

    Asks the server whose directory PRONK_STATE names.
    """
    import asyncio

    from ...protocol.settings import load_settings
    from .operate import show

    try:
        asyncio.run(show(load_settings(), typer.echo))
    except PronkError as error:
        raise _fail(error) from None


@app.command(rich_help_panel=_SERVER)
def drain(
    kind: Annotated[DrainKind, typer.Argument(help="What is to be drained.")],
    name: Annotated[
        str,
        typer.Argument(
            help="Its name or incarnation as `pronk status` has them; may be left out for "
            "frontends, which are then drained one after the other."
        ),
    ] = "",
    timeout: Annotated[
        str | None,
        typer.Option(
            help="How long streams may go on where they are, such as 90 or 5m; "
            "PRONK_DRAIN_TIMEOUT where it is not given."
        ),
    ] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Of a device: let models be placed there again.")
    ] = False,
) -> None:
    """Have a process finish what it has and exit; another takes its place.

    A worker's streams that are not done in time go on in another worker. A device is left by all
    workers that have a part of it, and nothing is placed there until --undo. Ctrl-C ends this
    command, and not the draining.
    """
    import asyncio

    from ...protocol.durations import parse_duration
    from ...protocol.settings import load_settings
    from .operate import drain as have_drained

    if undo and kind is not DrainKind.DEVICE:
        raise typer.BadParameter("only a device can be used again", param_hint="--undo")
    if not name and kind is not DrainKind.FRONTEND:
        raise typer.BadParameter(f"say which {kind.value}; `pronk status` lists them")
    try:
        seconds = None if timeout is None else parse_duration(timeout)
        if seconds is not None and seconds < 0:
            raise ValueError("is less than nothing; write seconds, or 5m")
    except ValueError as error:
        raise typer.BadParameter(f"{timeout}: {error}", param_hint="--timeout") from None
    try:
        asyncio.run(have_drained(load_settings(), kind, name, seconds, undo, typer.echo))
    except PronkError as error:
        raise _fail(error) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@app.command("supervisor-config", rich_help_panel=_SERVER)
def supervisor_config() -> None:
    """Print the processes as a file for this host's own supervisord to include.

    The settings of this shell are written into it, and the processes run as this user. Creates the
    directory PRONK_STATE.
    """
    import getpass

    from ...protocol.settings import load_settings
    from ...protocol.state import StateDirectory
    from .rendering import render_for_host

    try:
        loaded = load_settings()
        StateDirectory(loaded.state).prepare()
        sys.stdout.write(render_for_host(loaded, getpass.getuser()))
    except PronkError as error:
        raise _fail(error) from None
