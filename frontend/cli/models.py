"""The commands about models, each a thin function: they talk to a running server over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

_PANEL = "Models"

_Host = Annotated[
    str | None,
    typer.Option("--host", help="Address or URL of the server; wins over PRONK_HOST."),
]
_Name = Annotated[str, typer.Argument(help="A model, such as llama3.2 or hf.co/org/repo:Q4_K_M.")]
_Json = Annotated[bool, typer.Option("--json", help="Print what the server says as JSON.")]
_JsonLines = Annotated[
    bool, typer.Option("--json", help="Print the progress as JSON, an object on each line.")
]
_Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Allow a registry without TLS, or with any certificate."),
]


def pull(
    name: _Name, insecure: _Insecure = False, as_json: _JsonLines = False, host: _Host = None
) -> None:
    """Fetch a model from its registry.

    What was interrupted goes on where it was.
    """
    from . import transfer
    from .api import Api
    from .progress import progress
    from .terminal import reporting, valid

    name = valid(name)
    again = f"Stopped. What came is kept: `pronk pull {name}` goes on from there."
    with reporting(again), progress(as_json) as shown:
        transfer.pull(Api.of(host), name, insecure, shown)


def push(
    name: _Name, insecure: _Insecure = False, as_json: _JsonLines = False, host: _Host = None
) -> None:
    """Send a model to its registry.

    The name says which registry that is: give the model such a name with
    `pronk cp llama3.2 registry.example.org/me/llama3.2`, and push that.
    """
    from . import transfer
    from .api import Api
    from .progress import progress
    from .terminal import reporting, valid

    name = valid(name)
    again = f"Stopped. `pronk push {name}` sends what is missing."
    with reporting(again), progress(as_json) as shown:
        transfer.push(Api.of(host), name, insecure, shown)


def create(
    name: Annotated[str, typer.Argument(help="What the model is to be called.")],
    file: Annotated[
        str, typer.Option("-f", "--file", help="The Modelfile; `-` reads standard input.")
    ] = "Modelfile",
    quantize: Annotated[
        str | None,
        typer.Option("-q", "--quantize", help="Quantize the weights, to q4_K_M for example."),
    ] = None,
    as_json: _JsonLines = False,
    host: _Host = None,
) -> None:
    """Create a model from a Modelfile.

    FROM names a model or a GGUF file; files are sent to the server unless it
    has them. Paths are relative to the Modelfile.
    """
    from .api import Api
    from .creating import create
    from .progress import progress
    from .terminal import reporting, valid

    with reporting("Stopped."), progress(as_json) as shown:
        create(Api.of(host), valid(name), file, quantize, shown)


def show(
    name: _Name,
    license: Annotated[bool, typer.Option("--license", help="Its license alone.")] = False,
    modelfile: Annotated[bool, typer.Option("--modelfile", help="Its Modelfile alone.")] = False,
    parameters: Annotated[bool, typer.Option("--parameters", help="Its parameters alone.")] = False,
    system: Annotated[bool, typer.Option("--system", help="Its system message alone.")] = False,
    template: Annotated[bool, typer.Option("--template", help="Its template alone.")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Metadata and tensors, too.")
    ] = False,
    as_json: _Json = False,
    host: _Host = None,
) -> None:
    """Show what there is to know about a model."""
    from . import showing
    from .api import Api
    from .terminal import reporting, valid

    wanted = dict(
        zip(showing.PARTS, (license, modelfile, parameters, system, template), strict=True)
    )
    chosen = [part for part, is_wanted in wanted.items() if is_wanted]
    if len(chosen) > 1:
        options = ", ".join(f"--{part}" for part in showing.PARTS)
        raise typer.BadParameter(f"only one of {options} can be shown")
    with reporting():
        part = chosen[0] if chosen else None
        showing.show(Api.of(host), valid(name), part, verbose, as_json)


def list_models(
    prefix: Annotated[str, typer.Argument(help="What the names are to begin with.")] = "",
    as_json: _Json = False,
    host: _Host = None,
) -> None:
    """List the models of the library (also: ls)."""
    from . import listing
    from .api import Api
    from .terminal import reporting

    with reporting():
        listing.show_list(Api.of(host), prefix, as_json)


def ps(as_json: _Json = False, host: _Host = None) -> None:
    """List the models that are loaded."""
    from . import listing
    from .api import Api
    from .terminal import reporting

    with reporting():
        listing.show_loaded(Api.of(host), as_json)


def rm(
    names: Annotated[list[str], typer.Argument(help="Models to delete.")],
    host: _Host = None,
) -> None:
    """Delete models."""
    from . import listing
    from .api import Api
    from .terminal import reporting, valid

    with reporting():
        failed = listing.remove(Api.of(host), [valid(name) for name in names])
    if failed:
        raise typer.Exit(1)


def cp(
    source: Annotated[str, typer.Argument(help="A model.")],
    destination: Annotated[str, typer.Argument(help="Its new name.")],
    host: _Host = None,
) -> None:
    """Give a model one more name. No file is copied."""
    from . import listing
    from .api import Api
    from .terminal import reporting, valid

    with reporting():
        listing.copy(Api.of(host), valid(source), valid(destination))


def stop(name: _Name, host: _Host = None) -> None:
    """Unload a model, once it has answered what it was asked."""
    from . import listing
    from .api import Api
    from .terminal import reporting, valid

    with reporting():
        listing.stop(Api.of(host), valid(name))


_SWITCHES = ("--verbose", "--nowordwrap", "--hidethinking", "--insecure", "--truncate")


class _Run(TyperCommand):
    """Takes `--think=high` beside `--think`, and `--verbose=false`, as Ollama's command does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Turns these forms into those of ours."""
        end = args.index("--") if "--" in args else len(args)
        args[:end] = [form for arg in args[:end] for form in _forms(arg)]
        return super().parse_args(ctx, args)


def _forms(argument: str) -> list[str]:
    name, _, value = argument.partition("=")
    if name == "--think" and value:
        return [f"--think-level={value}"]
    if name in _SWITCHES and value in ("true", "1"):
        return [name]
    if name in _SWITCHES and value in ("false", "0"):
        return ["--no-truncate"] if name == "--truncate" else []
    return [argument]


def run(
    name: _Name,
    prompt: Annotated[list[str] | None, typer.Argument(help="What to ask.")] = None,
    format: Annotated[
        str | None, typer.Option("--format", help="`json`, or a JSON schema, for the answer.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", help="A system message.")] = None,
    keepalive: Annotated[
        str | None, typer.Option("--keepalive", help="How long the model stays loaded, as 5m.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print how long the answer took.")
    ] = False,
    nowordwrap: Annotated[
        bool, typer.Option("--nowordwrap", help="Break lines where the terminal does.")
    ] = False,
    think: Annotated[
        bool | None,
        typer.Option("--think/--no-think", help="Have the model think; also --think=high."),
    ] = None,
    think_level: Annotated[str | None, typer.Option("--think-level", hidden=True)] = None,
    hidethinking: Annotated[
        bool, typer.Option("--hidethinking", help="Do not print what it thinks.")
    ] = False,
    dimensions: Annotated[
        int | None, typer.Option("--dimensions", min=1, help="Length of an embedding.")
    ] = None,
    truncate: Annotated[
        bool | None,
        typer.Option(
            "--truncate/--no-truncate", help="Cut a text that is too long for an embedding."
        ),
    ] = None,
    insecure: _Insecure = False,
    host: _Host = None,
) -> None:
    """Ask a model, or talk with it.

    With a PROMPT, or with text on standard input, or both, it answers once.
    Without, it is a conversation: /? lists its commands. A model that is not in
    the library is pulled first. A model for embeddings prints a vector. To one
    that sees, pictures are shown by their paths: "what is in ./llama.png?"
    """
    from .api import Api
    from .conversation.run import Wish, run
    from .terminal import reporting, valid

    with reporting():
        run(
            Api.of(host),
            Wish(
                model=valid(name),
                prompts=[valid(text) for text in prompt or []],
                format=format,
                system=None if system is None else valid(system),
                keep_alive=keepalive,
                verbose=verbose,
                wraps=not nowordwrap,
                think=think if think_level is None else think_level,
                hides_thinking=hidethinking,
                dimensions=dimensions,
                truncate=truncate,
                insecure=insecure,
            ),
        )


def register(app: typer.Typer) -> None:
    """Adds the commands to the application."""
    app.command("run", cls=_Run, rich_help_panel=_PANEL)(run)
    for function in (pull, push, create, show):
        app.command(rich_help_panel=_PANEL)(function)
    app.command("list", rich_help_panel=_PANEL)(list_models)
    app.command("ls", hidden=True)(list_models)
    for function in (ps, cp, rm, stop):
        app.command(rich_help_panel=_PANEL)(function)
