"""What the store does when it is told to change the library."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ...protocol.errors import Code, PronkError
from ...protocol.messages.changes import CopyModel, DeleteModel
from ...protocol.names import ModelName, parse_name
from .builtin import NAME as BUILTIN
from .builtin import BuiltinModel
from .builtin_copy import stage_builtin
from .changes import Run
from .echo import echo_model
from .layout import Library
from .report import Report
from .writing import Writer


class Shelf:
    """Carries out orders on the library and on what is built in."""

    def __init__(
        self, library: Library, writer: Writer, builtin: BuiltinModel | None, *, echo: bool = False
    ) -> None:
        self._library = library
        self._writer = writer
        self._builtin = builtin
        self._echo = echo

    def runs(self) -> Mapping[type[Any], Run]:
        """What is to be done for orders of each kind, as far as it is done here."""
        return {CopyModel: self.copy, DeleteModel: self.delete}

    async def copy(self, order: CopyModel, report: Report) -> str | None:
        """Gives a model another name, too; the built-in one becomes a model of the library."""
        source, destination = parse_name(order.source), parse_name(order.destination)
        return await asyncio.to_thread(self._copy, source, destination)

    async def delete(self, order: DeleteModel, report: Report) -> str | None:
        """Removes a name."""
        return await asyncio.to_thread(self._delete, parse_name(order.name))

    def _copy(self, source: ModelName, destination: ModelName) -> str | None:
        if self._library.find(source):
            return self._writer.copy(source, destination)
        if self._builtin and self._is_builtin(source):
            if destination.key == source.key:
                return None
            with self._writer.hold() as hold:
                manifest = stage_builtin(self._builtin, self._writer, hold)
                return self._writer.replace(destination, manifest).unnamed
        if self._echo and echo_model(source):
            raise PronkError(
                Code.INVALID_REQUEST,
                f"model '{source.display}' is built in and has no files that could be copied",
            )
        return self._writer.copy(source, destination)  # says that there is none

    def _delete(self, name: ModelName) -> str | None:
        if not self._library.find(name):
            for there, setting in (
                (self._builtin and self._is_builtin(name), "PRONK_DEMO_MODEL=off"),
                (self._echo and echo_model(name), "PRONK_ECHO_MODEL=off"),
            ):
                if there:
                    raise PronkError(
                        Code.INVALID_REQUEST,
                        f"model '{name.display}' is built in and cannot be deleted; {setting} "
                        "takes it away",
                    )
        return self._writer.delete(name)

    def _is_builtin(self, name: ModelName) -> bool:
        return name.key == BUILTIN.key
