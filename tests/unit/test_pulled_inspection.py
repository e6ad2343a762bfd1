"""What was pulled is looked at before the library has it, and only what is hostile is refused."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.names import parse_name
from pronk.workers.store.inspecting import inspect_pulled
from pronk.workers.store.writing import Writer
from support.creating import MEDIA
from support.gguf_files import gguf_bytes, pair, small_gguf, tensor

NAME = parse_name("registry.test/stranger/model")


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "library")


def manifest(writer: Writer, *files: tuple[str, bytes]) -> bytes:
    """A manifest of these files by kind, whose blobs were pulled."""
    layers = [
        {
            "mediaType": kind if "/" in kind else MEDIA + kind,
            "digest": f"sha256:{writer.keep(content)}",
            "size": len(content),
        }
        for kind, content in files
    ]
    return json.dumps({"schemaVersion": 2, "layers": layers}).encode()


async def refusal(writer: Writer, *files: tuple[str, bytes]) -> str:
    with pytest.raises(PronkError) as caught:
        await inspect_pulled(NAME, manifest(writer, *files), writer)
    assert caught.value.code is Code.REGISTRY_FAILED
    assert "registry.test/stranger/model" in caught.value.message
    assert "/library" not in caught.value.message.replace(NAME.display, "")
    return caught.value.message


async def test_whole_files_of_every_kind_pass(writer: Writer, tmp_path: Path) -> None:
    whole = small_gguf(tmp_path / "whole").read_bytes()
    files = [("model", whole), ("adapter", gguf_bytes()), ("projector", gguf_bytes(data=64))]
    await inspect_pulled(NAME, manifest(writer, *files, ("license", b"free")), writer)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(struct.pack("<Q", 2) + b"{}", id="safetensors"),
        pytest.param(b"lmgg" + bytes(64), id="before GGUF"),
        pytest.param(b"", id="nothing"),
        # What cannot be loaded here may be of use to another program on the same library.
        pytest.param(gguf_bytes(tensor(kind=4), data=128), id="a type that is not known"),
        pytest.param(gguf_bytes(pairs=[pair("split.count", 3)]), id="a part of a split model"),
        pytest.param(gguf_bytes(pairs=()), id="no architecture"),
    ],
)
async def test_what_is_merely_of_no_use_is_left_to_whoever_wants_it(
    writer: Writer, content: bytes
) -> None:
    await inspect_pulled(NAME, manifest(writer, ("model", content)), writer)


@pytest.mark.parametrize("kind", ["model", "projector", "adapter"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        # CVE-2026-7482, and the family of CVE-2024-39720
        (gguf_bytes(tensor(offset=1 << 20), data=128), "behind the end of the file"),
        (gguf_bytes(tensor(shape=(1 << 40,)), data=128), "behind the end of the file"),
        (gguf_bytes(tensor(kind=4, offset=1 << 40), data=128), "behind the end of the file"),
        (gguf_bytes(tensor(shape=(0, 8)), data=128), "dimension"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 2**64 - 1, 0), "tensors"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**64 - 1), "metadata entries"),
        (b"GGUF", "ends within its header"),
    ],
)
async def test_what_its_loader_would_read_beyond_is_refused(
    writer: Writer, kind: str, content: bytes, reason: str
) -> None:
    said = await refusal(writer, (kind, content))
    assert reason in said
    assert hashlib.sha256(content).hexdigest() in said


async def test_every_file_is_looked_at(writer: Writer) -> None:
    bad = gguf_bytes(tensor(offset=1 << 20), data=128)
    said = await refusal(writer, ("model", gguf_bytes()), ("adapter", bad), ("license", b"free"))
    assert "adapter" in said


async def test_a_model_of_more_files_than_anybody_makes_is_refused(writer: Writer) -> None:
    files = [("adapter", gguf_bytes(data=32 * count)) for count in range(33)]
    assert "more than 32 files" in await refusal(writer, *files)


async def test_a_manifest_that_is_none_is_refused(writer: Writer) -> None:
    with pytest.raises(PronkError) as caught:
        await inspect_pulled(NAME, b"[]", writer)
    assert caught.value.code is Code.REGISTRY_FAILED
