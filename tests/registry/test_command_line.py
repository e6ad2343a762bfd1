"""`pronk` fills a real registry, and gets back what it has put there."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from support.cli import completed
from support.registry import needs_registry, plain_registry
from support.server import PATIENCE, Server
from support.terminal import terminal

pytestmark = [needs_registry, pytest.mark.xdist_group("command line")]


def pronk(server: Server, *arguments: str, cwd: Path | None = None) -> tuple[str, list[str]]:
    """What a command prints, and the lines of its progress."""
    done = completed(*arguments, env=server.environment, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.splitlines()


def test_a_model_is_made_pushed_deleted_and_pulled(server: Server, tmp_path: Path) -> None:
    demo = files("pronk.workers.store.demo").joinpath("demo.gguf").read_bytes()
    (tmp_path / "own.gguf").write_bytes(demo + bytes(7))  # nobody else's file
    (tmp_path / "Modelfile").write_text(
        'FROM own.gguf\nPARAMETER temperature 0\nPARAMETER stop "###"\nSYSTEM "You are a llama."\n'
    )
    with plain_registry(tmp_path / "registry") as registry:
        name = f"{registry.host}/library/commanded:v1"
        try:
            _, made = pronk(server, "create", name, cwd=tmp_path)
            assert "copying own.gguf: 100% 3.7 MB" in made
            assert made[-1] == "success"
            shown, _ = pronk(server, "show", name, "--json")
            _, pushed = pronk(server, "push", name, "--insecure")
            assert pushed[-1] == "success"
            assert pronk(server, "rm", name)[0] == f"deleted '{name}'\n"
            answer, pulled = pronk(server, "run", name, "--insecure", "Why is the sky blue?")
            assert "blue" in answer
            assert pulled[0] == "pulling manifest"
            assert pulled[-1] == "success"
            again, _ = pronk(server, "show", name, "--json")
            parts = ("parameters", "system", "template", "model_info", "details")
            first, second = json.loads(shown), json.loads(again)
            assert [first.get(part) for part in parts] == [second.get(part) for part in parts]
            pronk(server, "rm", name)
            with terminal(
                "pull", name, "--insecure", home=tmp_path, url=server.url, columns=120
            ) as screen:
                screen.read_until("100% ▕██████████████████▏ 3.7 MB")
                assert screen.wait() == 0
                assert "writing manifest" in screen.shown
        finally:
            subprocess.run(
                [sys.executable, "-m", "pronk.frontend.cli", "rm", name],
                env=server.environment,
                capture_output=True,
                timeout=PATIENCE,
            )
