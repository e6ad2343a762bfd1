"""The files that a model is made of: those of another model, and those that were uploaded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from ....protocol.errors import Code, PronkError
from ....protocol.messages.changes import CreateModel
from ..files import Damaged
from ..layout import Layer, Library
from ..looking.gguf_check import CONVERT, FileFacts
from ..looking.inspection import inspect
from ..report import Report
from ..writing import Hold, Writer

MAX_FILES = 32
"""Files that are looked at for one model, each by a process of its own."""
GGUF_KINDS = ("model", "projector", "adapter")
_NO_WEIGHTS = (".safetensors", ".json")


@dataclass(frozen=True, slots=True)
class Part:
    """A layer, and what is known of it where it is a GGUF file."""

    layer: Layer
    path: Path | None = None
    facts: FileFacts | None = None
    new: bool = False
    """Whether no blob was there for it before."""

    @property
    def architecture(self) -> str:
        """Of a GGUF file; empty for others."""
        return self.facts.architecture if self.facts else ""


def check_files(order: CreateModel) -> None:
    """Raises `PronkError` (invalid_request) for what no blob has to be looked at for."""
    if not order.from_model and not order.files:
        raise _invalid("there is nothing to make a model of: give `from`, or `files`")
    for what, files in (("files", order.files), ("adapters", order.adapters)):
        if len(files) > MAX_FILES:
            raise _invalid(f"{what}: there may be {MAX_FILES} at most")
        for name in files:
            path = PurePosixPath(name.replace("\\", "/"))
            inside = not path.is_absolute() and not PureWindowsPath(name).drive
            if not name or not name.isprintable() or not inside or ".." in path.parts:
                raise _invalid(
                    f"{what}: {name[:64]!a} is not the name of a file within a directory"
                )
            if path.suffix.lower() in _NO_WEIGHTS:
                raise _invalid(f"{what}: '{name}' is no GGUF file; {CONVERT}")


async def parts_of_layers(
    layers: Sequence[Layer], name: str, library: Library, writer: Writer, hold: Hold
) -> list[Part]:
    """The parts of the model `name`, all with that for their origin.

    Raises `PronkError` where a file of it cannot be used.
    """
    if sum(layer.kind in GGUF_KINDS for layer in layers) > MAX_FILES:
        raise _invalid(f"model '{name}' cannot be used: it has more than {MAX_FILES} files")
    parts: list[Part] = []
    for each in layers:
        hold.add(each.digest)
        layer = Layer(each.kind, each.digest, each.size, name)
        if layer.kind not in GGUF_KINDS:
            parts.append(Part(layer))
            continue
        try:
            path = await asyncio.to_thread(_found, layer, library, writer)
        except Damaged as error:
            raise damaged(name, error) from None
        facts = await inspect(path, f"model '{name}'")
        if layer.kind == "model" and facts.kind != "model":
            raise _invalid(f"model '{name}' cannot be used: its weights are a {facts.kind}")
        parts.append(Part(layer, path, facts))
    return parts


async def parts_of_files(
    files: Mapping[str, str], writer: Writer, hold: Hold, report: Report
) -> dict[str, Part]:
    """A part for each uploaded file, by its name. Raises `PronkError` where one cannot be used."""
    parts: dict[str, Part] = {}
    for name, digest in files.items():
        hold.add(digest)
        path = await asyncio.to_thread(writer.find, digest)
        if path is None:
            raise _invalid(
                f"blob sha256:{digest} is not there; upload it with POST /api/blobs/sha256:{digest}"
            )
        report("parsing GGUF")
        facts = await inspect(path, f"file '{name}'")
        size = (await asyncio.to_thread(path.stat)).st_size
        parts[name] = Part(Layer(facts.kind, digest, size), path, facts)
    return parts


def assembled(
    base: Sequence[Part], files: Mapping[str, Part], adapters: Mapping[str, Part]
) -> list[Part]:
    """The parts of one model, in their order, each of them once.

    Raises `PronkError` (invalid_request) unless they belong together.
    """
    for name, part in adapters.items():
        if part.layer.kind != "adapter":
            raise _invalid(f"adapters: '{name}' is no adapter; its weights go into `files`")
    added = [(name, part) for name, part in files.items() if part.layer.kind == "model"]
    if len({part.layer.digest for _, part in added}) > 1:
        names = ", ".join(f"'{name}'" for name, _ in added)
        raise _invalid(f"files: {names} are weights each, and a model has one such file")
    if added and base:
        raise _invalid(f"both `from` and the file '{added[0][0]}' bring weights; give one of them")
    unique: dict[tuple[str, str], Part] = {}
    uploaded = sorted(files.values(), key=lambda part: GGUF_KINDS.index(part.layer.kind))
    for part in (*base, *uploaded, *adapters.values()):
        unique.setdefault((part.layer.kind, part.layer.digest), part)
    weights = [part for part in unique.values() if part.layer.kind == "model" and part.facts]
    if not weights:
        raise _invalid("none of the files is a model's weights; give them, or a model in `from`")
    for name, part in (*files.items(), *adapters.items()):
        if part.layer.kind == "adapter" and part.architecture != weights[-1].architecture:
            raise _invalid(
                f"adapter '{name}' is made for models of the architecture '{part.architecture}', "
                f"and this one is '{weights[-1].architecture}'"
            )
    return list(unique.values())


def damaged(name: str, error: Damaged) -> PronkError:
    """A model that others are to be made of is not as it should be."""
    return PronkError(
        Code.LOAD_FAILED, f"model '{name}' is damaged in the library: {error}; pull it again"
    )


def _found(layer: Layer, library: Library, writer: Writer) -> Path:
    return writer.find(layer.digest) or library.part(layer)


def _invalid(problem: str) -> PronkError:
    return PronkError(Code.INVALID_REQUEST, problem)
