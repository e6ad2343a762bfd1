"""A look at the files that a manifest from elsewhere names, before the library has it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from ...protocol.errors import Code, PronkError
from ...protocol.names import ModelName
from .creating.parts import GGUF_KINDS, MAX_FILES
from .files import Damaged, stamp_of
from .gguf_metadata import InvalidGGUF
from .layout import manifest_parts
from .looking.finding import LookAtFile
from .looking.headers import Headers
from .looking.read_headers import Detail
from .looking.reading import read_one
from .looking.throwaway import descriptor_of
from .writing import Writer


async def inspect_pulled(name: ModelName, manifest: bytes, writer: Writer) -> None:
    """Raises `PronkError` (registry_failed) where a model must not be kept, because a GGUF file of
    it has a header that cannot be, or tensors that lie outside the file.

    For the moment between a model's last blob and its manifest: its blobs are there, and held by
    whoever asks. Each file is looked at in a process of its own, which takes some tenths of a
    second, and is ended with whoever asks. What is no GGUF file, such as safetensors, is left
    alone.
    """
    try:
        layers, _ = manifest_parts(manifest)
    except Damaged as error:
        raise _refused(name, str(error)) from None
    kinds = {layer.digest: layer.kind for layer in layers if layer.kind in GGUF_KINDS}
    if len(kinds) > MAX_FILES:
        raise _refused(name, f"it has more than {MAX_FILES} files")
    for digest, kind in kinds.items():
        path = await asyncio.to_thread(writer.find, digest)
        # One that is missing is for whoever writes the manifest to say.
        if path and (reason := await _problem_of(path)):
            what = "weights" if kind == "model" else kind
            raise _refused(name, f"its {what}, sha256:{digest}: {reason}")


async def _problem_of(path: Path) -> str:
    """Why nobody should load a file; empty where nothing speaks against it."""
    headers = Headers()
    try:
        look = await asyncio.to_thread(_look_at, path)
        if look is None:
            return ""
        await read_one(headers, look)
        return headers.facts(path).problem
    except InvalidGGUF as error:
        return str(error)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


def _look_at(path: Path) -> LookAtFile | None:
    """The look that a file needs; None where it is no GGUF file."""
    file = descriptor_of(path)
    try:
        if os.pread(file, 4, 0) != b"GGUF":
            return None
        return LookAtFile(path, stamp_of(os.fstat(file)), Detail.FACTS)
    finally:
        os.close(file)


def _refused(name: ModelName, reason: str) -> PronkError:
    return PronkError(
        Code.REGISTRY_FAILED,
        f"model '{name.display}' cannot be used as the registry has it, and was not added: "
        f"{reason}; tell whoever runs the registry",
    )
