"""What is installed is what stands in the tree: every room, and nothing that is not one."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("frontend", "protocol", "scheduler", "workers")


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_package_list_names_every_room_and_nothing_else(project: dict) -> None:
    rooms = {
        "pronk." + ".".join(marker.parent.relative_to(ROOT).parts)
        for room in ROOMS
        for marker in (ROOT / room).rglob("__init__.py")
    }
    assert set(project["tool"]["setuptools"]["packages"]) == {"pronk"} | rooms


def test_every_folder_with_code_of_ours_is_a_room(project: dict) -> None:
    training = ROOT / "workers/store/demo/training"
    for room in ROOMS:
        for module in (ROOT / room).rglob("*.py"):
            if training not in module.parents:
                assert (module.parent / "__init__.py").is_file(), module


def test_the_data_that_the_server_needs_is_there(project: dict) -> None:
    for package, names in project["tool"]["setuptools"]["package-data"].items():
        folder = ROOT.joinpath(*package.split(".")[1:])
        for name in names:
            assert (folder / name).is_file(), f"{package} lacks {name}"


def test_the_command_line_answers_without_loading_the_server() -> None:
    heavy = ("aiohttp", "zmq", "llama_cpp", "numpy", "ollama", "supervisor", "httpx")
    script = (
        "import sys, pronk.frontend.cli, pronk.frontend.cli.app;"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"
