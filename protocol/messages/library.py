"""Questions to the store, which alone reads the model library.

A name is what people use and may mean another model tomorrow; a digest never does. Frontends
resolve names when they accept a request; the scheduler asks by digest, and may keep the answer.
Every question carries `call`, chosen by the asker, and exactly one answer carries it back. All
questions here can be asked again without harm, so an asker repeats one that was not answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .changes import ModelMessage
from .failure import Failure
from .fields import Count, Digest, Flag, Label, Number, RequestId, Text


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """What a list shows of a model, in the fields of Ollama's `details`."""

    parent_model: Label
    format: Label
    family: Label
    families: list[Label]
    parameter_size: Label
    quantization_level: Label


class PartKind(StrEnum):
    """What a file is to the model that it belongs to, in the words of Ollama's media types."""

    ADAPTER = "adapter"
    """LoRA weights in GGUF, which are added to the model's own."""
    PROJECTOR = "projector"
    TEMPLATE = "template"
    """The Modelfile's TEMPLATE."""
    SYSTEM = "system"
    """The system message of conversations that have none."""
    MESSAGES = "messages"
    """Messages that precede each conversation, as JSON."""


@dataclass(frozen=True, slots=True)
class ModelPart:
    """A file of a model beside its weights, for the worker that loads it."""

    kind: PartKind
    path: Text
    blob: Digest
    """The file's own digest, by which a worker finds it on another host."""
    size: Count


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """All that placing and loading a model needs. Belongs to the digest, for ever."""

    name: Label
    """The name it was first asked for by, for people."""
    digest: Digest
    weights: Text
    """Path of the GGUF file, for the worker that loads it; empty for `echo`, which has none and
    needs no memory."""
    size: Count
    """Bytes on disk."""
    context_length: Count
    """Tokens of context that the model was trained for."""
    details: ModelDetails
    parameters: dict[Label, Any] = field(default_factory=dict[str, Any])
    """What the model's Modelfile sets: options of requests that name none, and of loading."""
    blob: Digest | None = None
    """The GGUF file's own digest, by which a worker finds it on another host."""
    parts: list[ModelPart] = field(default_factory=list[ModelPart])
    """In the manifest's order. Of texts of one kind, the last one counts."""
    renderer: Label = ""
    """Ollama's name for code of its own that writes the prompt in the template's place; empty where
    the template does."""
    analyses: dict[Digest, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """What was found out about its templates, each under the SHA-256 of its source, so that workers
    need not try them again."""


@dataclass(frozen=True, slots=True)
class ResolveModel:
    """Frontend → store: what does this name stand for now?"""

    call: RequestId
    name: Label


@dataclass(frozen=True, slots=True)
class ModelResolved:
    """Store → frontend: the model that the name stands for."""

    call: RequestId
    name: Label
    """Canonical, with its tag."""
    digest: Digest
    capabilities: list[Label]
    """What it can do, in Ollama's words: completion, tools, vision, …"""


@dataclass(frozen=True, slots=True)
class DescribeModel:
    """Scheduler → store: the facts of this digest."""

    call: RequestId
    digest: Digest


@dataclass(frozen=True, slots=True)
class ModelDescribed:
    """Store → scheduler."""

    call: RequestId
    facts: ModelFacts


@dataclass(frozen=True, slots=True)
class ListModels:
    """Frontend → store: every model of the library."""

    call: RequestId


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """One line of the list."""

    name: Label
    digest: Digest
    size: Count
    modified_at: Number
    """Unix time."""
    details: ModelDetails


@dataclass(frozen=True, slots=True)
class ModelList:
    """Store → frontend, the most recently modified first."""

    call: RequestId
    models: list[ModelSummary]


@dataclass(frozen=True, slots=True)
class ShowModel:
    """Frontend → store: everything there is to show of a model."""

    call: RequestId
    name: Label
    verbose: Flag = False
    """Whether long metadata arrays, such as the vocabulary, come along."""


@dataclass(frozen=True, slots=True)
class ModelShown:
    """Store → frontend. Fields are those of Ollama's `/api/show`."""

    call: RequestId
    modelfile: Text
    parameters: Text
    template: Text
    system: Text
    license: Text
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[Label]
    modified_at: Number
    tensors: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Name, type and shape of each tensor; only when `verbose`."""
    projector_info: dict[str, Any] = field(default_factory=dict[str, Any])
    messages: list[ModelMessage] = field(default_factory=list[ModelMessage])
    requires: Label = ""
    renderer: Label = ""
    parser: Label = ""


@dataclass(frozen=True, slots=True)
class CallFailed:
    """The answer to a question that has none: `not_found`, for example."""

    call: RequestId
    failure: Failure


MESSAGES = (
    ResolveModel,
    ModelResolved,
    DescribeModel,
    ModelDescribed,
    ListModels,
    ModelList,
    ShowModel,
    ModelShown,
    CallFailed,
)
