"""What every row of the table stands on: a real server, texts that nobody has seen, a line."""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from support.library import add_model
from support.models import ensure_model
from support.server import Server, servers

P = TypeVar("P")

MODEL = "bench"
GREEDY = {"temperature": 0, "repeat_penalty": 1.0}


@dataclass(frozen=True)
class Plan:
    """What was asked for on the command line."""

    models: tuple[str, ...]
    widths: tuple[int, ...]
    rounds: int
    threads: int
    requests: int


def say(text: str) -> None:
    """Progress, beside the table: how long something will take, and what was found on the way."""
    print(f"  … {text}", file=sys.stderr, flush=True)


def line(model: str, what: str, found: str, beside: str, ratio: str, bound: str) -> None:
    """One line of the table."""
    print(f"{model:>5}  {what:<44} {found:>14} {beside:>18} {ratio:>21}  {bound}", flush=True)


def print_table(rows: Mapping[str, Callable[[P], None]], wanted: Iterable[str], plan: P) -> None:
    """The table's head, and the rows that are wanted, each with the time that it took."""
    line("model", "", "found", "beside", "ratio (range)", "bound")
    for row in wanted:
        began = time.monotonic()
        rows[row](plan)
        say(f"{row} took {time.monotonic() - began:.0f} s")


def ratio_with_spread(ratios: Sequence[float]) -> str:
    """The median of the rounds' ratios, and the smallest and largest of them."""
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"


class Texts:
    """Texts of random letters, so that no two begin alike and nothing was read before."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def text(self, letters: int) -> str:
        """Nearly as many tokens as letters, and never more, by the invented vocabularies."""
        return "".join(self._random.choices("etaoinshrdlucmfwygpbvkqjxz ", k=letters))


def completion(prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
    """The body of a request for a greedy answer of `tokens` tokens."""
    options = {**GREEDY, "num_predict": tokens}
    return {"model": MODEL, "prompt": prompt, "raw": True, "options": options, **more}


@contextmanager
def serving(model: str, slots: int, context: int, threads: int) -> Iterator[Server]:
    """A server with one model, which is loaded by its first request and then stays."""
    with servers() as make:
        settings = {
            "PRONK_WORKERS": "1",
            "PRONK_THREADS": str(threads),
            "PRONK_NUM_PARALLEL": str(slots),
            "PRONK_CONTEXT_LENGTH": str(context),
            "PRONK_KEEP_ALIVE": "-1",
        }
        if model == "demo":
            yield make(**settings)
            return
        weights = ensure_model(model)  # type: ignore[arg-type]
        # The library beside the model, which is linked instead of copied.
        with tempfile.TemporaryDirectory(prefix="library-", dir=weights.parent) as library:
            add_model(Path(library), MODEL, weights)
            yield make(PRONK_MODELS=library, **settings)
