"""The commands about models with a real server and its built-in model."""

from __future__ import annotations

import json
from pathlib import Path

from support.cli import completed
from support.server import Server, wait_for
from support.terminal import CTRL_D, terminal


def pronk(server: Server, *arguments: str, stdin: str = "") -> str:
    """What a command prints on standard output."""
    done = completed(*arguments, env=server.environment, stdin=stdin)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_models_stay_as_the_commands_show_it(server: Server) -> None:
    assert "blue" in pronk(server, "run", "demo", "Why is the sky blue?")
    assert "llama" in pronk(server, "run", "demo", stdin="What is a llama?").lower()
    whole = pronk(server, "run", "demo", "--format", "json", "Who are you?")
    assert isinstance(json.loads(whole), dict)
    _, row = pronk(server, "ps").splitlines()
    assert row.startswith("demo:latest ")
    assert "100% CPU" in row
    assert "minutes from now" in row
    assert pronk(server, "stop", "demo") == ""
    wait_for(lambda: not server.loaded(), "the model's end")


def test_what_is_known_of_a_model(server: Server) -> None:
    _, row = pronk(server, "list", "demo").splitlines()
    name, digest, *size = row.split()[:4]
    assert (name, size) == ("demo:latest", ["3.7", "MB"])
    shown = pronk(server, "show", "demo")
    assert "architecture        llama" in shown
    assert "  Capabilities\n    completion\n" in shown
    (listed,) = json.loads(pronk(server, "list", "--json"))["models"]
    assert listed["digest"].startswith(digest)


def test_a_model_is_made_named_and_deleted(server: Server) -> None:
    text = "FROM demo\nPARAMETER temperature 0\nPARAMETER stop ###\nSYSTEM You are a llama.\n"
    pronk(server, "create", "made", "-f", "-", "--json", stdin=text)
    assert pronk(server, "show", "made", "--system") == "You are a llama.\n"
    assert pronk(server, "cp", "made", "named") == "copied 'made' to 'named'\n"
    assert "blue" in pronk(server, "run", "named", "Why is the sky blue?")
    assert pronk(server, "rm", "made", "named") == "deleted 'made'\ndeleted 'named'\n"
    assert len(pronk(server, "list").splitlines()) == 2


def test_a_conversation_remembers_what_was_said(server: Server, tmp_path: Path) -> None:
    with terminal("run", "demo", home=tmp_path, url=server.url) as screen:
        screen.read_until(">>> ")
        screen.type("Why is the sky blue?\n")
        assert "blue" in screen.read_until("\n\n>>> ")
        screen.type("/set verbose\n")
        screen.read_until(">>> ")
        screen.type("Who are you?\n")
        screen.read_until("prompt eval count:")
        assert int(screen.read_until("token(s)").split()[0]) > 30, "both questions and the answer"
        screen.read_until("\n>>> ")
        screen.type(CTRL_D)
        assert screen.wait() == 0
