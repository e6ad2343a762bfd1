"""`pronk create`: a Modelfile and the files that it names become a model of the server."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...protocol.errors import Code, PronkError
from .api import Api
from .modelfile import MAX_BYTES, Modelfile, Named, parse
from .progress import Progress, follow

_CHUNK = 2**20
_MAGIC = b"GGUF"
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_PATH_BEGINS = ("/", "./", "../", "~")


def create(api: Api, name: str, modelfile: str, level: str | None, shown: Progress) -> None:
    """Creates a model. Raises `PronkError` for what is wrong with the Modelfile or its files, and
    for what the server says.
    """
    data, folder = _read(modelfile)
    wanted = parse(data)
    body = _fields(wanted) | {"model": name, "stream": True}
    if level:
        body["quantize"] = level
    files: dict[str, Path] = {}
    adapters: dict[str, Path] = {}
    for origin in wanted.origins:
        if path := _path(origin, folder):
            _add(files, path)
        elif "from" in body:
            raise _wrong(origin, "FROM names a second model; a model is made from one")
        else:
            body["from"] = origin.text
    for adapter in wanted.adapters:
        path = _path(adapter, folder)
        if path is None:
            raise _wrong(adapter, f"there is no file {adapter.text}")
        _add(adapters, path)
    for field, paths in (("files", files), ("adapters", adapters)):
        if paths:
            body[field] = {key: _upload(api, path, shown) for key, path in paths.items()}
    if not follow(api.lines("/api/create", body), shown):
        raise PronkError(Code.UNAVAILABLE, "the server did not come to an end; try again")


def _read(modelfile: str) -> tuple[bytes, Path]:
    """The Modelfile, and the directory that its paths are relative to."""
    if modelfile == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1), Path()
    path = Path(modelfile).expanduser()
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1), path.parent
    except OSError as error:
        raise PronkError(
            Code.INVALID_REQUEST, f"{modelfile}: {error.strerror}; name a Modelfile with -f"
        ) from None


def _fields(wanted: Modelfile) -> dict[str, Any]:
    """What the request says as the Modelfile has it."""
    fields = {
        "template": wanted.template,
        "system": wanted.system,
        "parameters": wanted.parameters or None,
        "messages": wanted.messages or None,
        "license": wanted.licenses or None,
        "renderer": wanted.renderer,
        "parser": wanted.parser,
        "requires": wanted.requires,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _path(named: Named, folder: Path) -> Path | None:
    """The file that is meant, or None where it can only be a model's name."""
    try:
        path = folder / Path(named.text).expanduser()
        found = path.stat()
    except (RuntimeError, ValueError):
        raise _wrong(named, f"there is no file {named.text}") from None
    except OSError as error:
        if _is_written_as_path(named.text):
            raise _wrong(named, f"{named.text}: {error.strerror}") from None
        return None
    if stat.S_ISDIR(found.st_mode):
        if not _is_written_as_path(named.text):
            return None  # a folder that happens to be called like the model
        raise _wrong(
            named,
            f"{named.text} is a directory; name a GGUF file in it. Safetensors become one with "
            "llama.cpp's convert_hf_to_gguf.py",
        )
    if not stat.S_ISREG(found.st_mode):
        raise _wrong(named, f"{named.text} is not a file")
    if not _is_gguf(path, named):
        if not _is_written_as_path(named.text):
            return None  # a file that happens to be called like the model
        raise _wrong(
            named,
            f"{named.text} is no GGUF file; safetensors become one with llama.cpp's "
            "convert_hf_to_gguf.py or convert_lora_to_gguf.py",
        )
    if _SHARD.search(path.name):
        raise _wrong(
            named,
            f"{named.text} is one part of a model in several files; make one file of them with "
            "llama.cpp's `llama-gguf-split --merge`",
        )
    return path


def _is_written_as_path(text: str) -> bool:
    return text.startswith(_PATH_BEGINS) or text in (".", "..") or text.lower().endswith(".gguf")


def _is_gguf(path: Path, named: Named) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise _wrong(named, f"{named.text}: {error.strerror}") from None


def _add(files: dict[str, Path], path: Path) -> None:
    """Puts a file into the request, under its own name."""
    key = path.name
    while key in files:
        key = f"_{key}"
    files[key] = path


def _upload(api: Api, path: Path, shown: Progress) -> str:
    """Has the server have a file; returns its digest. What is there already is not sent."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256()
        for chunk in _chunks(file, size, f"hashing {path.name}", shown):
            digest.update(chunk)
        name = f"sha256:{digest.hexdigest()}"
        if not api.has(f"/api/blobs/{name}"):
            file.seek(0)
            api.send(f"/api/blobs/{name}", _chunks(file, size, f"copying {path.name}", shown), size)
    return name


def _chunks(file: Any, size: int, label: str, shown: Progress) -> Iterator[bytes]:
    """A file of `size` bytes piece by piece. Raises `PronkError` when it changes meanwhile."""
    done = 0
    while done < size:
        chunk = file.read(min(_CHUNK, size - done))
        if not chunk:
            raise PronkError(
                Code.INVALID_REQUEST, f"{Path(file.name).name} became shorter while it was read"
            )
        done += len(chunk)
        shown.part(label, label, size, done)
        yield chunk


def _wrong(named: Named, problem: str) -> PronkError:
    return PronkError(Code.INVALID_REQUEST, f"line {named.line} of the Modelfile: {problem}")
