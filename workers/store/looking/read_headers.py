"""A program that reads the headers of GGUF files, and says in lines of JSON what is in them.

For each file it says one of

    {"facts": {…}}     what is worth remembering of it
    {"refused": "why"}

and behind facts, unless it was asked for nothing else, what there is to show of it:

    {"metadata": {…}, "tensors": […], "omitted": […]}

It runs in a process of its own, which may die of a file, and which holds nothing but the files.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from enum import StrEnum
from io import FileIO
from typing import Any

from ..gguf_facts import INFILL_TOKENS, facts_of
from ..gguf_metadata import Header, InvalidGGUF, read_open_header
from .confinement import confine

SECONDS = 30
"""Of computing, for all files together."""
MAX_SHOWN = 8 * 1024 * 1024
"""Bytes of what there is to show of one file."""


class Detail(StrEnum):
    """How much is to be said of a file."""

    FACTS = "facts"
    BRIEF = "brief"
    """The facts, and the metadata without long arrays."""
    VERBOSE = "verbose"
    """The facts, all metadata, and the tensors."""


def said_of(file: FileIO, detail: Detail) -> Iterator[bytes]:
    """The lines that the program says of an open file."""
    verbose = detail is Detail.VERBOSE
    try:
        header = read_open_header(file, tensors=verbose, arrays=verbose, look_for=INFILL_TOKENS)
        yield _line({"facts": asdict(facts_of(header))})
        if detail is not Detail.FACTS:
            yield _shown(header)
    except InvalidGGUF as error:
        yield _line({"refused": str(error)})
    except OSError as error:
        yield _line({"refused": f"it cannot be read ({error.strerror})"})


def _shown(header: Header) -> bytes:
    """The line; without its largest values, or the tensors, where it would be too long with them.
    What is left then always fits: keys are few and short.
    """
    metadata = header.metadata | {"general.parameter_count": header.parameter_count}
    values: dict[str | None, bytes] = {key: _json(value) for key, value in metadata.items()}
    # Under no key: theirs may be any.
    values[None] = _json(
        [
            {"name": tensor.name, "type": tensor.type, "shape": tensor.shape}
            for tensor in header.tensors
        ]
    )
    omitted: list[str] = []
    excess = len(_assembled(values, omitted)) - MAX_SHOWN
    for key in sorted(values, key=lambda key: -len(values[key])):
        if excess <= 0:
            break
        excess -= len(values[key])
        values[key] = b"[]" if key is None else b"null"
        omitted.append("tensors" if key is None else key)
        excess += len(values[key]) + len(_json(omitted[-1])) + 1
    return _assembled(values, omitted)


def _assembled(values: Mapping[str | None, bytes], omitted: list[str]) -> bytes:
    metadata = [_json(key) + b":" + value for key, value in values.items() if key is not None]
    parts = (b",".join(metadata), values[None], _json(omitted))
    return b'{"metadata":{%b},"tensors":%b,"omitted":%b}\n' % parts


def _line(said: dict[str, Any]) -> bytes:
    return _json(said) + b"\n"


def _json(value: Any) -> bytes:
    # Not by orjson, which dies where memory is scarce, and takes much for long lists.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _main() -> None:
    memory, detail, *files = sys.argv[1:]
    descriptors = [int(file) for file in files]
    confine(
        memory=int(memory), seconds=SECONDS, written=0, keep=[one for one in descriptors if one > 2]
    )
    for descriptor in descriptors:
        with FileIO(descriptor) as file:
            for line in said_of(file, Detail(detail)):
                _say(line)


def _say(line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(sys.stdout.fileno(), rest) :]


if __name__ == "__main__":
    _main()
