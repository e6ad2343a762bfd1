"""The scheduler with workers: which model a worker has, and when its life ends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .failure import Failure
from .fields import Attempt, Count, Digest, Label, RequestId
from .fleet import LoadedModel
from .library import ModelFacts


@dataclass(frozen=True, slots=True)
class Load:
    """To a blank worker: become a replica of this model."""

    model: ModelFacts
    context_length: Count
    """Tokens of context for each slot."""
    threads: Count


@dataclass(frozen=True, slots=True)
class Loaded:
    """The worker is ready for requests."""

    model: LoadedModel
    duration: Count
    """Nanoseconds that loading took."""


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The model could not be loaded. The scheduler answers with `Unload`, and the worker exits."""

    digest: Digest
    failure: Failure


@dataclass(frozen=True, slots=True)
class Unload:
    """To a worker: exit, which gives all memory back. Its process manager starts a blank one."""

    reason: Label


class Outcome(StrEnum):
    """How a request left a worker."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Released:
    """From a worker: a request's slot is free again."""

    request: RequestId
    attempt: Attempt
    outcome: Outcome
    tokens: Count
    """Tokens generated, for accounting."""


MESSAGES = (Load, Loaded, LoadFailed, Unload, Released)
