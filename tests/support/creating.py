"""A library that models are made in, by a real `Writer`, and what was made."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pronk.protocol.messages.changes import CreateModel
from pronk.protocol.messages.library import ModelShown, ModelSummary
from pronk.protocol.names import ModelName
from pronk.workers.store.builtin import BuiltinModel
from pronk.workers.store.catalog import Catalog
from pronk.workers.store.creating.creation import create
from pronk.workers.store.layout import Library
from pronk.workers.store.looking.headers import Headers
from pronk.workers.store.looking.looker import Looker
from pronk.workers.store.looking.templates import Templates
from pronk.workers.store.report import Report
from pronk.workers.store.writing import Writer
from support.store import CALL, listed, show

MEDIA = "application/vnd.ollama.image."


@dataclass
class Workshop:
    """Makes models in an own library."""

    root: Path
    builtin: BuiltinModel | None = None
    quantizing: asyncio.Lock | None = None
    lines: list[tuple[str, str, int | None, int | None]] = field(default_factory=list)
    """What was reported of the last creation."""
    pulled: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.looker = Looker(Headers(), Templates())
        self.writer = Writer(self.root)
        self.library = Library(self.root)

    @property
    def catalog(self) -> Catalog:
        return Catalog(Library(self.root), self.builtin)

    @property
    def statuses(self) -> list[str]:
        return [status for status, *_ in self.lines]

    def upload(self, file: Path) -> str:
        """Has the file be there as if it had been uploaded; returns its digest."""
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        copy = self.writer.incoming()
        copy.write_bytes(content)
        self.writer.adopt(copy, digest)
        return digest

    async def make(self, name: str, **fields: Any) -> str | None:
        """Makes a model of the fields of a request."""
        self.lines.clear()

        def report(
            status: str, digest: str = "", total: int | None = None, completed: int | None = None
        ) -> None:
            self.lines.append((status, digest, total, completed))

        return await create(
            CreateModel(CALL, name, **fields),
            library=self.library,
            writer=self.writer,
            pull=self.pull,
            report=report,
            looker=self.looker,
            builtin=self.builtin,
            quantizing=self.quantizing,
        )

    async def pull(self, name: ModelName, report: Report) -> None:
        """Stands for a registry that has nothing, unless a test says otherwise."""
        self.pulled.append(name.display)
        await asyncio.sleep(0)
        report("success")

    def manifest(self, name: str, tag: str = "latest") -> dict[str, Any]:
        path = self.root / "manifests/registry.ollama.ai/library" / name / tag
        return json.loads(path.read_bytes())

    def content(self, described: dict[str, Any]) -> bytes:
        """The blob that a manifest describes, which is what it says."""
        path = self.root / "blobs" / described["digest"].replace(":", "-")
        content = path.read_bytes()
        assert hashlib.sha256(content).hexdigest() == described["digest"].removeprefix("sha256:")
        assert len(content) == described["size"]
        return content

    def config(self, name: str) -> dict[str, Any]:
        return json.loads(self.content(self.manifest(name)["config"]))

    def layers(self, name: str) -> list[tuple[str, str]]:
        """The kind of each layer, and the model that it is from."""
        return [
            (layer["mediaType"].removeprefix(MEDIA), layer.get("from", ""))
            for layer in self.manifest(name)["layers"]
        ]

    def text(self, name: str, kind: str) -> str:
        """The one layer of a kind."""
        (layer,) = [x for x in self.manifest(name)["layers"] if x["mediaType"] == MEDIA + kind]
        return self.content(layer).decode()

    def show(self, name: str) -> ModelShown:
        return show(self.catalog, name)

    def listed(self) -> list[ModelSummary]:
        return listed(self.catalog)

    def blobs(self) -> set[str]:
        return {path.name.removeprefix("sha256-") for path in (self.root / "blobs").iterdir()}

    def snapshot(self) -> dict[str, int]:
        """Everything that a reader of the library sees."""
        return {
            str(path): path.stat().st_ino
            for part in ("manifests", "blobs")
            for path in (self.root / part).rglob("*")
        }
