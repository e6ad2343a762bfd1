"""`/api/tags` of a large library, beside reading its manifests once."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from pronk.protocol.codec import encode
from pronk.protocol.messages.library import ListModels
from pronk.workers.store.catalog import Catalog
from pronk.workers.store.layout import Library
from support.server import PATIENCE, servers
from support.store import CALL, Ollama, tiny_gguf

from .library_plan import Plan
from .stand import line, ratio_with_spread, say


def tags(plan: Plan) -> None:
    """The store's own part, as it is asked again and again, and as it is asked for the first time;
    then the whole way of a request.
    """
    with tempfile.TemporaryDirectory(prefix="pronk-") as directory:
        root = Path(directory, "models")
        _fill(root, plan.models)
        catalog = Catalog(Library(root), None)
        _compare(plan, root, "store, again", lambda: _list(catalog), "<= 3")
        _compare(plan, root, "store, first time", lambda: _list(Catalog(Library(root), None)), "")
        with servers() as make:
            server = make(PRONK_MODELS=str(root), PRONK_WORKERS="1")
            with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
                listed = len(client.get("/api/tags").json()["models"])
                say(f"{listed} models are listed, `demo` among them")
                _compare(plan, root, "GET /api/tags", lambda: client.get("/api/tags"), "<= 3")


def _fill(root: Path, models: int) -> None:
    library = Ollama(root)
    weights = tiny_gguf(root.parent / "tiny.gguf").read_bytes()
    for number in range(models):
        name = f"registry.ollama.ai/library/model{number}/latest"
        library.add(name, weights + str(number).encode(), modified_at=1_700_000_000.0 + number)


def _compare(plan: Plan, root: Path, what: str, ours: Callable[[], object], bound: str) -> None:
    _seconds(ours)
    found, beside = list[float](), list[float]()
    for _ in range(plan.rounds):
        beside.append(_seconds(lambda: _read(root)))
        found.append(_seconds(ours))
    line(
        "",
        f"{what}, {plan.models} models, ms",
        f"{1000 * statistics.median(found):.1f}",
        f"read {1000 * statistics.median(beside):.1f}",
        ratio_with_spread([mine / theirs for mine, theirs in zip(found, beside, strict=True)]),
        bound,
    )


def _list(catalog: Catalog) -> bytes:
    return encode(catalog.answer(ListModels(CALL)))


def _read(root: Path) -> int:
    """Finds and reads every manifest."""
    size = 0
    for directory, _, names in os.walk(root / "manifests"):
        for name in names:
            with open(os.path.join(directory, name), "rb") as file:  # noqa: PTH118, PTH123
                size += len(file.read())
    return size


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
