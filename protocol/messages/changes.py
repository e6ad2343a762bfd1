"""What changes the model library, and how far such a change is.

A frontend asks the store, under a `call` of its own, and repeats the question every two seconds:
that says that its caller still waits, attaches it again to a store that was restarted, and costs
nothing, because a question that is known already is answered with the progress so far. What takes
long sends `Progress` until the one answer, `Changed` or `CallFailed`. A caller that nobody hears of
any more, or that says `StopCall`, is let go; a change that nobody waits for is ended, and what it
has brought to the disk by then stays there for the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from .fields import Count, Digest, Flag, Label, RequestId, Text

MAX_FILES = 1024
"""Files of one model, in each of its roles."""

_Files = Annotated[dict[Label, Digest], Field(max_length=MAX_FILES)]


@dataclass(frozen=True, slots=True)
class PullModel:
    """Frontend → store: fetch this model from its registry."""

    call: RequestId
    name: Label
    insecure: Flag = False
    """Whether plain HTTP, or a certificate that cannot be verified, will do."""


@dataclass(frozen=True, slots=True)
class PushModel:
    """Frontend → store: bring this model to its registry."""

    call: RequestId
    name: Label
    insecure: Flag = False


@dataclass(frozen=True, slots=True)
class ModelMessage:
    """A message that precedes each conversation with a model."""

    role: Label
    content: Text


@dataclass(frozen=True, slots=True)
class CreateModel:
    """Frontend → store: make a model of another one, or of files that were uploaded.

    What is None is taken over from the model that it is made of.
    """

    call: RequestId
    name: Label
    from_model: Label | None = None
    files: _Files = field(default_factory=dict[str, str])
    """Digests of uploaded blobs by the names that their files had."""
    adapters: _Files = field(default_factory=dict[str, str])
    template: Text | None = None
    system: Text | None = None
    license: list[Text] | None = None
    parameters: dict[Label, Any] | None = None
    messages: list[ModelMessage] | None = None
    quantize: Label | None = None
    """What its weights are to be quantized to, such as `q4_K_M`."""
    renderer: Label | None = None
    parser: Label | None = None
    requires: Label | None = None
    """The least version of Ollama that can run it."""


@dataclass(frozen=True, slots=True)
class CopyModel:
    """Frontend → store: give this model another name, too."""

    call: RequestId
    source: Label
    destination: Label


@dataclass(frozen=True, slots=True)
class DeleteModel:
    """Frontend → store: remove this name, and what nothing else needs."""

    call: RequestId
    name: Label


@dataclass(frozen=True, slots=True)
class Progress:
    """Store → frontend: how far a change is. The fields are those of Ollama's progress lines."""

    call: RequestId
    status: Label
    digest: Label = ""
    """What is being moved, as `sha256:…`; empty where nothing is."""
    total: Count | None = None
    """Bytes in all."""
    completed: Count | None = None
    """Bytes that are there."""


@dataclass(frozen=True, slots=True)
class Changed:
    """Store → frontend: it is done."""

    call: RequestId
    unnamed: Digest | None = None
    """The model that no name stands for any more: nobody needs to keep it loaded."""


@dataclass(frozen=True, slots=True)
class StopCall:
    """Frontend → store: the caller of this change, or of this upload, is gone."""

    call: RequestId


MESSAGES = (
    PullModel,
    PushModel,
    ModelMessage,
    CreateModel,
    CopyModel,
    DeleteModel,
    Progress,
    Changed,
    StopCall,
)
