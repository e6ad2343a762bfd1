"""How a worker reaches its scheduler and finds its models: here, or having joined another host's.

On another host, paths and sockets that messages name mean nothing. Sockets have tcp addresses
beside their ipc ones, and a model's files are looked up by their digests in this host's own
library.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..protocol.errors import Code, PronkError
from ..protocol.keys import ClientKeys, client_keys
from ..protocol.messages.embedding import Embed
from ..protocol.messages.generation import Generate
from ..protocol.messages.library import ModelFacts, ModelPart
from ..protocol.messages.placement import Load
from ..protocol.settings import Settings
from ..protocol.state import StateDirectory
from ..protocol.tcp import reachable
from .store.builtin import BuiltinModel
from .store.files import Damaged
from .store.layout import Library


@dataclass(frozen=True, slots=True)
class Home:
    """What a worker needs to know of the place that it runs at."""

    scheduler: str
    """Endpoint of the scheduler."""
    settings: Settings
    keys: ClientKeys | None = None
    """Those with which it joined another host's scheduler; None beside its own host's."""

    @classmethod
    def of(cls, settings: Settings, state: StateDirectory) -> Home:
        """As the settings say. Raises `PronkError` when keys are missing."""
        if settings.scheduler:
            return cls(settings.scheduler, settings, client_keys(settings.keys_directory))
        return cls(state.scheduler, settings)

    def reply_to(self, header: Generate | Embed) -> str:
        """The endpoint of the frontend that asks. Raises ValueError when it has none for us."""
        if self.keys is None:
            return header.reply_to
        if header.reply_to_tcp is None:
            raise ValueError(f"frontend {header.frontend} does not listen on tcp")
        return reachable(header.reply_to_tcp, self.scheduler)

    def load(self, load: Load) -> Load:
        """The same load with what is this host's own: the files' paths, the number of threads. The
        scheduler's host's devices are not there.

        Raises `PronkError` NOT_FOUND when this host does not have the model.
        """
        if self.keys is None:
            return load
        model = load.model
        if model.weights:
            weights = self._weights(model.blob, model.name)
            model = replace(model, weights=weights, parts=list(self._parts(model)))
        return replace(load, model=model, threads=self.settings.threads, shares=[], layers=0)

    def _parts(self, model: ModelFacts) -> Iterator[ModelPart]:
        """The parts that a worker reads, where they lie here."""
        library = Library(self.settings.models)
        for part in model.parts:
            try:
                yield replace(part, path=str(library.blob(part.blob)))
            except Damaged:
                raise _missing(f"a part of {model.name} ({part.kind})") from None

    def _weights(self, blob: str | None, name: str) -> str:
        missing = _missing(name)
        if blob is None:
            raise missing
        try:
            return str(Library(self.settings.models).blob(blob))
        except Damaged:
            builtin = BuiltinModel().model() if self.settings.demo_model == "on" else None
            if builtin is None or builtin.blob != blob:
                raise missing from None
            return str(builtin.weights)


def _missing(what: str) -> PronkError:
    return PronkError(
        Code.NOT_FOUND,
        f"{what} is not in the model library (PRONK_MODELS) of the host that was to load it",
    )
