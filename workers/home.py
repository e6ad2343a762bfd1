"""How a worker reaches its scheduler and finds its models: here, or having joined another host's.

On another host, paths and sockets that messages name mean nothing. Sockets have tcp addresses
beside their ipc ones, and a model's file is looked up by its digest in this host's own library.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..protocol.errors import Code, PronkError
from ..protocol.keys import ClientKeys, client_keys
from ..protocol.messages.embedding import Embed
from ..protocol.messages.generation import Generate
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
        """The same load with what is this host's own: the file's path, the number of threads. The
        scheduler's host's devices are not there.

        Raises `PronkError` NOT_FOUND when this host does not have the model.
        """
        if self.keys is None:
            return load
        weights = load.model.weights and self._weights(load.model.blob, load.model.name)
        model = replace(load.model, weights=weights)
        return replace(load, model=model, threads=self.settings.threads, shares=[], layers=0)

    def _weights(self, blob: str | None, name: str) -> str:
        missing = PronkError(
            Code.NOT_FOUND,
            f"{name} is not in the model library (PRONK_MODELS) of the host that was to load it",
        )
        if blob is None:
            raise missing
        try:
            return str(Library(self.settings.models).blob(blob))
        except Damaged:
            builtin = BuiltinModel().model() if self.settings.demo_model == "on" else None
            if builtin is None or builtin.blob != blob:
                raise missing from None
            return str(builtin.weights)
