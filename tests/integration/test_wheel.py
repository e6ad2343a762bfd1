"""What users install: the wheel holds all that the server needs, and works without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("frontend", "protocol", "scheduler", "workers")
TRAINING = ROOT / "workers/store/demo/training"

pytestmark = pytest.mark.xdist_group("wheel")  # built once, by one of pytest's workers


PATIENCE = 600.0
"""Seconds that a command may take before the test gives up: a demo is a whole server's life."""


def run(*command: str | Path, **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # From a copy, because setuptools leaves its intermediate files beside the sources.
    sources = tmp_path_factory.mktemp("sources") / "pronk"
    unwanted = shutil.ignore_patterns(
        ".git", ".venv", ".bench", "build", "dist", "*.egg-info", "__pycache__", ".*_cache"
    )
    shutil.copytree(ROOT, sources, ignore=unwanted)
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    run(*pip, "--wheel-dir", folder, sources)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with nothing but the wheel.

    Its dependencies are those of the environment that the tests run in: found through a path, so
    that llama.cpp is not built again, and the checkout's own installation there is not.
    """
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "dependencies.pth").write_text("\n".join(paths))
    return folder


def test_it_carries_every_module_and_the_data_and_nothing_else(wheel: Path) -> None:
    expected = {
        f"pronk/{module.relative_to(ROOT)}"
        for room in ROOMS
        for module in (ROOT / room).rglob("*.py")
        if TRAINING not in module.parents
    }
    expected |= {"pronk/supervisord.conf", "pronk/workers/store/demo/demo.gguf"}
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == expected


def test_it_serves_outside_the_checkout(environment: Path, tmp_path: Path) -> None:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PRONK_", "OLLAMA_", "PYTHON"))
    }
    pronk = environment / "bin" / "pronk"
    where = "import pronk.frontend.cli as cli; print(cli.__file__)"
    python = environment / "bin" / "python"
    assert str(environment) in run(python, "-c", where, cwd=tmp_path, env=clean)
    assert run(pronk, "--version", cwd=tmp_path, env=clean) == f"pronk {version('pronk')}\n"
    answer = run(pronk, "demo", "Why is the sky blue?", cwd=tmp_path, env=clean)
    assert len(answer.split()) > 3
