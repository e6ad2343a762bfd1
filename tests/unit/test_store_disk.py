"""Libraries that lie on several disks, or on one that has no second names for a file."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.names import parse_name
from pronk.workers.store.catalog import Catalog
from pronk.workers.store.disk import put_beside
from pronk.workers.store.layout import Library
from pronk.workers.store.writing import Writer
from support.store import Ollama, names
from support.writing import adopted, layer, written

MEMORY = Path("/dev/shm")


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    if not MEMORY.is_dir() or MEMORY.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("this machine has no second file system to write to")
    path = Path(tempfile.mkdtemp(prefix="pronk-", dir=MEMORY))
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("part", ["blobs", "manifests"])
def test_a_part_of_the_library_may_lie_on_another_disk(
    ollama: Ollama, other_disk: Path, weights: bytes, part: str
) -> None:
    ollama.root.mkdir()
    (ollama.root / part).symlink_to(other_disk)
    writer = Writer(ollama.root)
    # What is large never goes from one disk to the other.
    if part == "blobs":
        assert adopted(writer, weights).stat().st_dev == other_disk.stat().st_dev
    digest = written(writer, "phi", weights)
    written(writer, "eva/two", weights, b"two")
    assert sorted(names(Catalog(Library(ollama.root), None))) == ["eva/two:latest", "phi:latest"]
    writer.copy(parse_name("phi"), parse_name("eva/two"))
    writer.delete(parse_name("eva/two"))
    assert writer.delete(parse_name("phi")) == digest
    assert {path.name for path in other_disk.iterdir()} <= {".pronk"}


@pytest.mark.parametrize("there", [False, True])
def test_a_file_is_copied_to_where_it_cannot_be_linked(
    tmp_path: Path, other_disk: Path, there: bool
) -> None:
    source, target = tmp_path / "source", other_disk / "target"
    source.write_bytes(b"content")
    if there:
        target.write_bytes(b"old")
    assert put_beside(source, target, tmp_path / "between")
    assert target.read_bytes() == source.read_bytes() == b"content"
    assert [path.name for path in other_disk.iterdir()] == ["target"]
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_a_disk_without_second_names_moves_blobs(
    ollama: Ollama, weights: bytes, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As exFAT, and some file systems of networks, answer."""

    def refuse(*args: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    writer = Writer(ollama.root)
    for name in ("phi", "two"):
        written(writer, name, weights, name.encode())
    assert sorted(names(Catalog(Library(ollama.root), None))) == ["phi:latest", "two:latest"]
    writer.delete(parse_name("phi"))
    writer.delete(parse_name("two"))
    assert list((ollama.root / "blobs").iterdir()) == []
    assert list((ollama.root / ".pronk" / "staged").iterdir()) == []


def test_a_file_takes_the_place_of_another_one(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"content")
    target.write_bytes(b"old")
    for _ in range(2):  # the second time, both are names of one file already
        assert put_beside(source, target, tmp_path / "between")
        assert target.samefile(source)
        assert not (tmp_path / "between").exists()


@pytest.mark.parametrize("where", ["blob", "manifest", "above", "blobs"])
def test_a_directory_or_a_file_in_anothers_place_ends_in_a_clear_error(
    ollama: Ollama, weights: bytes, where: str
) -> None:
    match where:
        case "blob":
            place = ollama.path_of(layer("model", weights)["digest"])
            place.mkdir(parents=True)
        case "manifest":
            place = ollama.root / "manifests/registry.ollama.ai/library/phi/latest"
            place.mkdir(parents=True)
        case "above":
            place = ollama.root / "manifests/registry.ollama.ai"
            place.parent.mkdir(parents=True)
            place.write_bytes(b"x")
        case _:
            place = ollama.root / "blobs"
            place.parent.mkdir(parents=True)
            place.write_bytes(b"x")
    with pytest.raises(PronkError) as caught:
        written(Writer(ollama.root), "phi", weights)
    assert caught.value.code is Code.UNAVAILABLE
    assert str(ollama.root) not in caught.value.message
    assert place.exists()
