"""Libraries in Ollama's layout with everything that can be in them, and questions to a catalog."""

from __future__ import annotations

import hashlib
import json
import os
from io import FileIO
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from pronk.protocol.errors import PronkError
from pronk.protocol.messages.library import (
    DescribeModel,
    ListModels,
    ModelFacts,
    ModelResolved,
    ModelShown,
    ModelSummary,
    ResolveModel,
    ShowModel,
)
from pronk.workers.conversation.analysis import found_out
from pronk.workers.store.catalog import Answer, Catalog, Question
from pronk.workers.store.looking.finding import Lacking, LookAtTemplate
from pronk.workers.store.looking.read_headers import said_of
from pronk.workers.store.looking.throwaway import descriptor_of
from support.gguf_files import write_out

CALL = "0" * 32
MEDIA = "application/vnd.ollama.image."
CONFIG = {
    "model_format": "gguf",
    "model_family": "llama",
    "model_families": ["llama"],
    "model_type": "8.0B",
    "file_type": "Q4_K_M",
}


def tiny_gguf(path: Path, *, context: int = 2048, architecture: str = "llama") -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(context)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_token_list([f"token{i}" for i in range(40)])
    writer.add_chat_template("{{ messages }}")
    writer.add_tensor("output_norm.weight", np.ones(1500, np.float32))
    write_out(writer)
    return path


class Ollama:
    """Writes a library as Ollama does."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def blob(self, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        path = self.root / "blobs" / f"sha256-{digest}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    def layer(self, kind: str, content: bytes | str) -> dict[str, Any]:
        raw = content if isinstance(content, bytes) else content.encode()
        return {"mediaType": MEDIA + kind, **self.blob(raw)}

    def manifest(self, name: str, content: bytes) -> Path:
        path = self.root / "manifests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def add(
        self,
        name: str,
        weights: bytes | None,
        *layers: dict[str, Any],
        config: dict[str, Any] | None = None,
        modified_at: float = 1_700_000_000.0,
    ) -> Path:
        """A model under `host/namespace/model/tag`; returns its manifest."""
        described = self.blob(json.dumps(CONFIG if config is None else config).encode())
        described["mediaType"] = "application/vnd.docker.container.image.v1+json"
        own = [] if weights is None else [self.layer("model", weights)]
        content = {"schemaVersion": 2, "config": described, "layers": [*own, *layers]}
        path = self.manifest(name, json.dumps(content).encode())
        os.utime(path, (modified_at, modified_at))
        return path

    def path_of(self, digest: str) -> Path:
        return self.root / "blobs" / digest.replace(":", "-")


PHI = "registry.ollama.ai/library/phi/latest"


def answer_of(catalog: Catalog, question: Question) -> Answer:
    """The answer to a question. What a process would find out is found out here, by its code."""
    content = False
    while True:
        try:
            return catalog.answer(question, content=content)
        except Lacking as lacking:
            for look in lacking.looks:
                if isinstance(look, LookAtTemplate):
                    catalog.templates.keep(look.source, found_out(look.source))
                else:
                    with FileIO(descriptor_of(look.path)) as file:
                        for line in said_of(file, look.detail):
                            catalog.headers.take(look, line)
            content = lacking.seconds is not None


def resolve(catalog: Catalog, name: str) -> ModelResolved:
    answer = answer_of(catalog, ResolveModel(CALL, name))
    assert isinstance(answer, ModelResolved)
    return answer


def describe(catalog: Catalog, digest: str) -> ModelFacts:
    return answer_of(catalog, DescribeModel(CALL, digest)).facts  # type: ignore[union-attr]


def listed(catalog: Catalog) -> list[ModelSummary]:
    return answer_of(catalog, ListModels(CALL)).models  # type: ignore[union-attr]


def names(catalog: Catalog) -> list[str]:
    return [model.name for model in listed(catalog)]


def show(catalog: Catalog, name: str, *, verbose: bool = False) -> ModelShown:
    answer = answer_of(catalog, ShowModel(CALL, name, verbose))
    assert isinstance(answer, ModelShown)
    return answer


def refusal(catalog: Catalog, question: Any) -> PronkError:
    with pytest.raises(PronkError) as caught:
        answer_of(catalog, question)
    return caught.value
