"""The npm client `ollama` works with the library as with Ollama's.

It is installed once, into a cache of its own outside the checkout, and again when the version in
`npm/package.json` changes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from support.registry import needs_registry, plain_registry
from support.server import ServerMaker

HERE = Path(__file__).parent / "npm"
SCRIPT = HERE / "library.mjs"

pytestmark = [
    needs_registry,
    pytest.mark.skipif(
        not (shutil.which("node") and shutil.which("npm")),
        reason="needs node and npm (apt install nodejs npm)",
    ),
]


@pytest.fixture(scope="session")
def modules() -> Path:
    """The directory with `node_modules`."""
    wanted = (HERE / "package.json").read_bytes()
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pronk-tests"
    place = caches / f"npm-{hashlib.sha256(wanted).hexdigest()[:16]}"
    if place.exists():
        return place
    caches.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=caches) as directory:
        fresh = Path(directory) / "fresh"
        fresh.mkdir()
        (fresh / "package.json").write_bytes(wanted)
        subprocess.run(
            ["npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=fresh,
            check=True,
            timeout=300,
        )
        fresh.rename(place)
    return place


def test_the_npm_client_does_everything_with_a_library(
    make_server: ServerMaker, modules: Path, tmp_path: Path
):
    with plain_registry(tmp_path) as registry:
        server = make_server()
        script = subprocess.run(
            ["node", str(SCRIPT), str(modules), server.url, registry.host],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert script.returncode == 0, script.stdout + script.stderr
    assert script.stdout.count("done: ") == SCRIPT.read_text().count("await step(") > 0
