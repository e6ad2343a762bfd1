"""What a blank worker has in memory already: everything but what takes hold of devices."""

from __future__ import annotations

import json
import subprocess
import sys

LOADING = (
    "pronk.workers.inference.embedder",
    "pronk.workers.inference.engine",
    "pronk.workers.inference.footprint",
    "pronk.workers.inference.preparation",
)
SCRIPT = f"""
import importlib, json, sys
import pronk.workers.process
blank = set(sys.modules)
for name in {LOADING}:
    importlib.import_module(name)
print(json.dumps([sorted(blank), sorted(set(sys.modules) - blank)]))
"""


def test_loading_a_model_imports_llama_cpp_and_nothing_else_of_others() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    blank, then = json.loads(done.stdout.splitlines()[-1])
    assert not [name for name in blank if name.partition(".")[0] == "llama_cpp"]
    assert "llama_cpp" in then
    ours = ("pronk", "llama_cpp")
    assert [name for name in then if name.partition(".")[0] not in ours] == []
