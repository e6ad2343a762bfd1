"""Changing the model library: pull, push, create, copy, delete, and the files that models are made
of.

Names are checked here, so that a mistake in one is told before anything begins. What a name stood
for until now and nobody can ask for any more is unloaded: its streams finish first.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from ...protocol.errors import Code, PronkError
from ...protocol.following import Following, Steps
from ...protocol.messages.changes import Changed, CreateModel, ModelMessage
from ...protocol.messages.generation import Caller, Evict
from ...protocol.names import parse_name
from ..library import Library
from ..relay import Relay
from ..uploads import Uploads
from .models import not_found

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a model is to be made of. See `CreateModel` for the fields."""

    from_model: str | None
    files: Mapping[str, str]
    adapters: Mapping[str, str]
    template: str | None
    system: str | None
    license: tuple[str, ...]
    parameters: Mapping[str, Any]
    messages: tuple[ModelMessage, ...]
    quantize: str | None
    renderer: str | None
    parser: str | None
    requires: str | None


class Change:
    """A change under way. Leaving its `with` block before its end stops it, as far as nobody else
    waits for the same.
    """

    def __init__(self, changes: Changes, caller: Caller, following: Following) -> None:
        self._changes = changes
        self._caller = caller
        self._following = following

    def __enter__(self) -> Self:
        self._following.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._following.__exit__(kind, error, traceback)

    async def take(self) -> Steps:
        """How far it is, as soon as there is news. Nothing follows steps with `changed`.

        Raises the `PronkError` that ended it, once what was said before it has been taken.
        """
        steps = await self._following.take()
        if steps.changed:
            await self._changes.release(self._caller, steps.changed)
        return steps


class Changes:
    """Starts changes of the library, for every dialect alike."""

    def __init__(self, library: Library, uploads: Uploads, relay: Relay) -> None:
        self._library = library
        self._uploads = uploads
        self._relay = relay

    def pull(self, caller: Caller, name: str, *, insecure: bool = False) -> Change:
        """Fetches a model from its registry."""
        parse_name(name)
        return Change(self, caller, self._library.pull(name, insecure))

    def push(self, caller: Caller, name: str, *, insecure: bool = False) -> Change:
        """Brings a model to its registry."""
        parse_name(name)
        return Change(self, caller, self._library.push(name, insecure))

    def create(self, caller: Caller, name: str, recipe: Recipe) -> Change:
        """Makes a model. Raises INVALID_REQUEST where it is made of nothing."""
        parse_name(name)
        if recipe.from_model:
            parse_name(recipe.from_model)
        elif not recipe.files:
            raise PronkError(
                Code.INVALID_REQUEST,
                "neither 'from' or 'files' was specified: name the model that the new one is made "
                "of, or the files that were uploaded for it",
            )
        return Change(
            self,
            caller,
            self._library.create(
                lambda call: CreateModel(
                    call=call,
                    name=name,
                    from_model=recipe.from_model,
                    files=dict(recipe.files),
                    adapters=dict(recipe.adapters),
                    template=recipe.template,
                    system=recipe.system,
                    license=list(recipe.license) or None,
                    parameters=dict(recipe.parameters) or None,
                    messages=list(recipe.messages) or None,
                    quantize=recipe.quantize,
                    renderer=recipe.renderer,
                    parser=recipe.parser,
                    requires=recipe.requires,
                )
            ),
        )

    async def copy(self, caller: Caller, source: str, destination: str) -> None:
        """Gives a model another name, too."""
        parse_name(source)
        parse_name(destination)
        try:
            changed = await self._library.copy(source, destination)
        except PronkError as error:
            raise _explained(source, error) from None
        await self.release(caller, changed)

    async def delete(self, caller: Caller, name: str) -> None:
        """Removes a name, and what nothing else needs."""
        parse_name(name)
        try:
            await self._require(name)
            changed = await self._library.delete(name)
        except PronkError as error:
            raise _explained(name, error) from None
        if changed:
            await self.release(caller, changed)

    async def _require(self, name: str) -> None:
        """Raises NOT_FOUND where nothing has this name.

        A store that is slow to say so could not be told from one that died when it had deleted it.
        """
        try:
            await self._library.resolve(name)
        except PronkError as error:
            if error.code is not Code.LOAD_FAILED:  # what is damaged may well be deleted
                raise

    async def find_blob(self, caller: Caller, digest: str) -> int | None:
        """Bytes of the file with this digest (64 hexadecimal digits); None where there is none."""
        return await self._uploads.find(digest)

    async def upload(
        self, caller: Caller, digest: str, size: int | None, chunks: AsyncIterator[bytes]
    ) -> bool:
        """Returns when a file with this digest is in the library, for models to be made of: True
        where it was sent for that, False where it was there and is not read any further.

        `size` is in bytes, None where nobody knows. Cancelled, it leaves nothing behind.
        """
        return await self._uploads.upload(digest, size, chunks)

    async def release(self, caller: Caller, changed: Changed) -> None:
        """Has a model unloaded that no name stands for any more, as soon as its streams are done.

        The change has been made whether this succeeds or not: without a scheduler nothing is raised
        here, and the model stays until it has been idle for long enough.
        """
        if changed.unnamed is None:
            return
        try:
            await self._relay.evict(Evict(uuid4().hex, changed.unnamed, caller))
        except PronkError as error:
            _log.warning("model %.12s stays loaded without a name: %s", changed.unnamed, error)


def _explained(name: str, error: PronkError) -> PronkError:
    return not_found(name) if error.code is Code.NOT_FOUND else error
