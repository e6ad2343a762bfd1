"""The row `pull`: a model of 1 GB from a registry on loopback, beside curl and sha256sum.

usage: python -m benchmarks.pulling [ROUNDS]

What it is measured by is a download and a digest that are computed at the same time, each as fast
as it is by itself: the longer of curl's time to a file and of sha256sum's on that file. A pull also
brings the file to the disk, which these two do not, and asks for the manifest and the config.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from support.pushed import push_model
from support.registry import PROGRAM, RunningRegistry, plain_registry

from .stand import line, print_table, ratio_with_spread, say

SIZE = 1_000_000_000
CONNECTIONS = 8
MODEL = "library/bench:latest"


class Rounds(Protocol):
    """What of a plan matters here."""

    @property
    def rounds(self) -> int:
        """How often each side is measured."""
        ...


def pull(plan: Rounds) -> None:
    """Seconds of a whole pull, from the question for the manifest to the model's name."""
    if not shutil.which(PROGRAM):
        say(f"pull is left out: {PROGRAM} is not installed")
        return
    pulled, beside = list[float](), list[float]()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pronk-")))
        weights = directory / "weights"
        with weights.open("wb") as file:
            for number in range(SIZE // 1_000_000):
                file.write(random.Random(number).randbytes(1_000_000))
        registry = stack.enter_context(plain_registry(directory))
        digest = push_model(registry.url, MODEL, weights)
        weights.unlink()
        for _ in range(plan.rounds):
            curl, sums = _by_hand(registry, directory / "out", digest)
            say(f"curl {curl:.2f} s, sha256sum {sums:.2f} s")
            beside.append(max(curl, sums))
            pulled.append(_pulled(registry, directory / "models"))
    line(
        "1 GB",
        f"s of a pull over {CONNECTIONS} connections",
        f"{statistics.median(pulled):.2f}",
        f"by hand {statistics.median(beside):.2f}",
        ratio_with_spread([hand / ours for hand, ours in zip(beside, pulled, strict=True)]),
        "≥ 0.80",
    )


def _by_hand(registry: RunningRegistry, out: Path, digest: str) -> tuple[float, float]:
    address = f"{registry.url}/v2/{MODEL.partition(':')[0]}/blobs/sha256:{digest}"
    try:
        curl = _timed("curl", "--silent", "--fail", "--output", str(out), address)
        return curl, _timed("sha256sum", str(out))
    finally:
        out.unlink(missing_ok=True)


def _timed(*command: str) -> float:
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def _pulled(registry: RunningRegistry, library: Path) -> float:
    """In a process of its own, as the store is, which has begun when the clock starts."""
    name = f"{registry.host}/{MODEL}"
    command = [sys.executable, "-m", "support.pull_once", str(library), name, str(CONNECTIONS)]
    try:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=_environment())
        lines: Sequence[dict[str, float]] = [json.loads(text) for text in done.stdout.splitlines()]
        return lines[-1]["at"] - lines[0]["at"]
    finally:
        shutil.rmtree(library)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}


class _Asked:
    """The plan of this row alone."""

    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5


if __name__ == "__main__":
    print_table({"pull": pull}, ["pull"], _Asked())
