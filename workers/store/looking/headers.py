"""What the headers of a library's files say, as long as the files stay the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Annotated, Any, TypeGuard, cast

import orjson
from pydantic import BaseModel, Field, ValidationError

from ....protocol.messages.fields import Count, Flag
from ..files import Remembered, stamp_of
from ..gguf_facts import HeaderFacts
from ..gguf_metadata import InvalidGGUF
from .finding import Lacking, LookAtFile
from .inspection import plain
from .read_headers import MAX_SHOWN, Detail, said_of
from .throwaway import MAX_LINE, NONSENSE, descriptor_of

LONGEST = MAX_SHOWN + MAX_LINE
"""Bytes of a line that is said of a file."""

_REMEMBERED = 16_384
_REMEMBERED_BYTES = 4 * MAX_SHOWN
"""Of what there is to show."""
_BESIDE = 256
"""Bytes that remembering anything takes."""

_Word = Annotated[str, Field(strict=True, max_length=128)]


class _Facts(BaseModel):
    """`HeaderFacts`, with the bounds in which they are believed."""

    architecture: _Word
    quantization: _Word
    parameter_size: _Word
    context_length: Count
    embeds: Flag
    infills: Flag
    sees: Flag
    problem: Annotated[str, Field(strict=True, max_length=300)]


@dataclass(frozen=True, slots=True)
class Shown:
    """What there is to show of a file."""

    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """As `Header` has it, and the number of parameters."""
    tensors: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Name, type and shape of each, where everything was asked for."""
    omitted: list[str] = field(default_factory=list[str])
    """Keys whose values were too long."""


class Headers:
    """Remembers what was said of files. Blocking, for any thread.

    The files in `own` are part of this program, and are read here: that is quicker. For all others
    `Lacking` is raised, until somebody has taken in what a process says of them.
    """

    def __init__(self, *own: Path) -> None:
        self._own = frozenset(own)
        self._facts: Remembered[HeaderFacts | InvalidGGUF] = Remembered(_REMEMBERED)
        self._shown: Remembered[bytes] = Remembered(
            _REMEMBERED_BYTES, weigh=lambda line: len(line) + 256
        )

    def facts(self, path: Path, detail: Detail = Detail.BRIEF) -> HeaderFacts:
        """The facts of a file. `detail` is what is found out of it where they are not known: what
        the same question needs next.

        Raises `InvalidGGUF` and `Lacking`.
        """
        look = _look_at(path, detail)
        known = self._known(look)
        if known is None:
            known = self._known(self._looked(look))
        if known is None:
            raise Lacking(look)
        return known

    def shown(self, path: Path, *, verbose: bool = False) -> Shown:
        """What there is to show of a file. Raises `InvalidGGUF` and `Lacking`."""
        look = _look_at(path, Detail.VERBOSE if verbose else Detail.BRIEF)
        self._known(look)  # raises what is known to be wrong with it
        said = self._shown.get((path, look.detail), look.stamp)
        if said is None:
            said = self._shown.get((path, look.detail), self._looked(look).stamp)
        if said is None:
            raise Lacking(look)
        if not said:
            raise InvalidGGUF("the process that read it failed before it could say what is in it")
        return _shown_in(said)

    def take(self, look: LookAtFile, line: bytes) -> bool:
        """Remembers what was said of a file. Whether another line about it is to come.

        Raises ValueError for what makes no sense.
        """
        if line.startswith(b'{"metadata"'):
            self._shown.keep((look.path, look.detail), look.stamp, line)
            return False
        said = orjson.loads(line)
        match said:
            case {"facts": facts}:
                try:
                    believed = HeaderFacts(**_Facts.model_validate(facts).model_dump())
                except ValidationError:
                    raise ValueError from None
                self._facts.keep(look.path, look.stamp, believed)
                return look.detail is not Detail.FACTS
            case {"refused": str(reason)}:
                self.refuse(look, reason)
                return False
            case _:
                raise ValueError

    def refuse(self, look: LookAtFile, reason: str) -> None:
        """Remembers why a file is of no use, or, where facts about it are known, that there is
        nothing to show of it.
        """
        if look.detail is not Detail.FACTS and self._facts.get(look.path, look.stamp):
            self._shown.keep((look.path, look.detail), look.stamp, b"")
        else:
            self._facts.keep(look.path, look.stamp, InvalidGGUF(plain(reason)))

    def _known(self, look: LookAtFile) -> HeaderFacts | None:
        known = self._facts.get(look.path, look.stamp)
        if isinstance(known, InvalidGGUF):
            raise InvalidGGUF(str(known))
        return known

    def _looked(self, look: LookAtFile) -> LookAtFile:
        """The same, after a look where the file is this program's own."""
        if look.path in self._own:
            try:
                with FileIO(descriptor_of(look.path)) as file:
                    for line in said_of(file, look.detail):
                        self.take(look, line)
            except OSError as error:
                raise _unreadable(error) from None
        return look


def _look_at(path: Path, detail: Detail) -> LookAtFile:
    try:
        return LookAtFile(path, stamp_of(path.stat()), detail)
    except OSError as error:
        raise _unreadable(error) from None


def _unreadable(error: OSError) -> InvalidGGUF:
    return InvalidGGUF(f"it cannot be read ({error.strerror})")


def _shown_in(line: bytes) -> Shown:
    try:
        said = orjson.loads(line)
    except ValueError:
        raise InvalidGGUF(f"it {NONSENSE}") from None
    match said:
        case {"metadata": dict(metadata), "tensors": list(tensors), "omitted": list(omitted)} if (
            all(map(_is_value, cast(dict[str, Any], metadata).values()))
            and all(map(_is_tensor, cast(list[Any], tensors)))
            and all(isinstance(key, str) for key in cast(list[Any], omitted))
        ):
            return Shown(
                cast(dict[str, Any], metadata),
                cast(list[dict[str, Any]], tensors),
                cast(list[str], omitted),
            )
        case _:
            raise InvalidGGUF(f"it {NONSENSE}")


def _is_value(value: object) -> bool:
    return _is_plain(value) or _is_list(value)


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list) and all(map(_is_plain, cast(list[Any], value)))


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))


def _is_tensor(value: object) -> bool:
    match value:
        case {"name": str(), "type": str(), "shape": list() as shape, **others} if not others:
            return _is_list(shape)
        case _:
            return False
