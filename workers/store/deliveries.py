"""What the store does when models are to come from somewhere, to go somewhere, or to be made."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ...protocol.messages.changes import CreateModel, PullModel, PushModel
from ...protocol.names import ModelName, parse_name
from .builtin import BuiltinModel
from .changes import Run
from .creating.creation import create
from .layout import Library
from .looking.looker import Looker
from .pulling.pull import Puller
from .pushing import push
from .registry.client import Registry
from .report import Report
from .writing import Writer


class Deliveries:
    """Carries out orders that may take long, most of them with a registry's help."""

    def __init__(
        self,
        library: Library,
        writer: Writer,
        builtin: BuiltinModel | None,
        registry: Registry,
        puller: Puller,
        looker: Looker,
    ) -> None:
        self._library = library
        self._writer = writer
        self._builtin = builtin
        self._registry = registry
        self._puller = puller
        self._looker = looker
        self._quantizing = asyncio.Lock()

    def runs(self) -> Mapping[type[Any], Run]:
        """What is to be done for orders of each kind, as far as it is done here."""
        return {PullModel: self.pull, PushModel: self.push, CreateModel: self.create}

    async def pull(self, order: PullModel, report: Report) -> str | None:
        """Fetches a model, which takes the place of the one that has its name."""
        return await self._puller.pull(parse_name(order.name), order.insecure, report)

    async def push(self, order: PushModel, report: Report) -> None:
        """Brings a model to the registry that its name begins with."""
        await push(
            parse_name(order.name),
            order.insecure,
            library=self._library,
            writer=self._writer,
            registry=self._registry,
            report=report,
        )

    async def create(self, order: CreateModel, report: Report) -> str | None:
        """Makes a model; one that it is to be made of, and that is not there, is pulled."""
        return await create(
            order,
            library=self._library,
            writer=self._writer,
            pull=self._pull_base,
            report=report,
            looker=self._looker,
            builtin=self._builtin,
            quantizing=self._quantizing,
        )

    async def _pull_base(self, name: ModelName, report: Report) -> None:
        await self._puller.pull(name, False, report)
