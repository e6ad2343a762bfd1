from __future__ import annotations

import json
import logging
import os
import resource
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.names import parse_name
from pronk.workers.store import pruning, writing
from pronk.workers.store.catalog import Catalog
from pronk.workers.store.layout import Library
from pronk.workers.store.pruning import Pruned
from pronk.workers.store.writing import Replaced, Writer
from support.store import PHI, Ollama, names
from support.writing import adopted, digest_of, layer, manifest, written

PATIENCE = 60.0
PHI_NAME = parse_name("phi")


@pytest.fixture
def writer(ollama: Ollama) -> Writer:
    return Writer(ollama.root)


def blobs(ollama: Ollama) -> set[str]:
    return {path.name for path in (ollama.root / "blobs").iterdir()}


def blob_names(*contents: bytes) -> set[str]:
    return {f"sha256-{digest_of(content)}" for content in contents}


def left_over(ollama: Ollama) -> list[str]:
    own = ollama.root / ".pronk"
    places = ("partial", "staged", "scratch", "uploads")
    return [f"{place}/{path.name}" for place in places for path in (own / place).iterdir()]


def test_a_committed_model_is_served_and_looks_as_ollamas_do(
    ollama: Ollama, writer: Writer, catalog: Catalog, weights: bytes
) -> None:
    digest = written(writer, "phi", weights, b"MIT")
    model = Library(ollama.root).load(PHI_NAME)
    assert model.digest == digest
    assert names(catalog) == ["phi:latest"]
    assert blobs(ollama) == blob_names(weights, b"MIT", b"{}")
    assert left_over(ollama) == []
    umask = os.umask(0)
    os.umask(umask)
    for path in (*(ollama.root / "blobs").iterdir(), ollama.root / "manifests" / PHI):
        assert stat.S_IMODE(path.stat().st_mode) == 0o644 & ~umask
        assert path.stat().st_nlink == 1
    for path in (ollama.root / "blobs", (ollama.root / "manifests" / PHI).parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o755 & ~umask


def test_a_library_that_is_only_read_is_not_written(ollama: Ollama, writer: Writer) -> None:
    assert writer.find("0" * 64) is None
    writer.require_room(1)
    writer.tidy()
    with pytest.raises(PronkError) as caught:
        writer.commit(PHI_NAME, manifest(b"missing"))
    assert caught.value.code is Code.UNAVAILABLE
    assert not ollama.root.exists()


def test_a_blob_is_found_while_it_is_staged_and_when_it_is_installed(
    writer: Writer, weights: bytes, ollama: Ollama
) -> None:
    digest = digest_of(weights)
    assert writer.find(digest) is None
    staged = adopted(writer, weights)
    assert writer.find(digest) == staged
    written(writer, "phi", weights)
    assert writer.find(digest) == ollama.root / "blobs" / f"sha256-{digest}"


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "A" * 64, "0" * 63, f"{'0' * 64}\n"])
def test_what_is_no_digest_never_becomes_a_path(
    writer: Writer, digest: str, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"x")
    for ask in (
        lambda: writer.find(digest),
        lambda: writer.partial(digest),
        lambda: writer.adopt(victim, digest),
    ):
        with pytest.raises(PronkError) as caught:
            ask()
        assert caught.value.code is Code.INVALID_REQUEST
    assert victim.exists()


def test_a_model_whose_blobs_are_not_what_its_manifest_says_is_not_written(
    ollama: Ollama, writer: Writer, weights: bytes
) -> None:
    writer.keep(b"{}")
    staged = adopted(writer, weights)
    wrong = json.loads(manifest(weights))
    wrong["layers"][0]["size"] += 1
    for content, code in (
        (json.dumps(wrong).encode(), Code.INVALID_REQUEST),
        (manifest(weights, layer("license", b"never came")), Code.UNAVAILABLE),
        (b"no json", Code.INVALID_REQUEST),
        (b" " * 2**21, Code.INVALID_REQUEST),
    ):
        with pytest.raises(PronkError) as caught:
            writer.commit(PHI_NAME, content)
        assert caught.value.code is code
    staged.write_bytes(b"x" * len(weights))
    with pytest.raises(PronkError, match="not in the library any more"):
        writer.commit(PHI_NAME, manifest(weights))
    assert blobs(ollama) == set()
    assert not Library(ollama.root).find(PHI_NAME)


def test_a_blob_that_ollama_has_not_verified_is_not_believed(
    ollama: Ollama, writer: Writer, weights: bytes
) -> None:
    good = ollama.blob(weights)["digest"].removeprefix("sha256:")
    assert writer.find(good) == ollama.path_of(f"sha256:{good}")
    bad = ollama.path_of(ollama.blob(b"bad")["digest"])
    bad.write_bytes(b"abd")
    assert writer.find(digest_of(b"bad")) is None
    # What comes from elsewhere takes its place.
    written(writer, "phi", weights, b"bad")
    assert bad.read_bytes() == b"bad"


def test_a_blob_that_a_manifest_names_is_not_read_again(
    ollama: Ollama, writer: Writer, weights: bytes
) -> None:
    ollama.add(PHI, weights)
    path = ollama.path_of(f"sha256:{digest_of(weights)}")
    path.write_bytes(b"x" * len(weights))
    assert writer.find(digest_of(weights)) == path
    path.write_bytes(weights[:-1])
    assert writer.find(digest_of(weights)) is None


def test_upper_and_lower_case_do_not_make_another_model(
    ollama: Ollama, writer: Writer, weights: bytes, catalog: Catalog
) -> None:
    ollama.add("hf.co/TheBloke/Phi-GGUF/Q4", weights)
    written(writer, "hf.co/thebloke/phi-gguf:q4", weights, b"new")
    written(writer, "HF.co/thebloke/Other:v1", weights)
    assert sorted(names(catalog)) == ["hf.co/TheBloke/Other:v1", "hf.co/TheBloke/Phi-GGUF:Q4"]
    assert writer.delete(parse_name("HF.CO/THEBLOKE/PHI-GGUF:q4"))
    assert names(catalog) == ["hf.co/TheBloke/Other:v1"]


def test_a_replaced_model_takes_its_own_blobs_with_it_and_nobody_elses(
    ollama: Ollama, writer: Writer, weights: bytes
) -> None:
    ollama.blob(b"ollamas")
    written(writer, "phi", weights, b"ours", b"ollamas")
    written(writer, "phi", weights, b"new")
    assert blobs(ollama) == blob_names(weights, b"new", b"ollamas", b"{}")


def test_a_deleted_model_takes_what_nothing_else_needs(
    ollama: Ollama, writer: Writer, weights: bytes
) -> None:
    written(writer, "phi", weights, b"phis")
    written(writer, "eva/small:v1", weights, b"evas")
    digest = Library(ollama.root).load(PHI_NAME).digest
    assert writer.delete(PHI_NAME) == digest
    assert blobs(ollama) == blob_names(weights, b"evas", b"{}")
    writer.delete(parse_name("eva/small:v1"))
    assert blobs(ollama) == set()
    assert list((ollama.root / "manifests").iterdir()) == []
    assert list((ollama.root / ".pronk" / "recorded").iterdir()) == []
    with pytest.raises(PronkError) as caught:
        writer.delete(PHI_NAME)
    assert caught.value.code is Code.NOT_FOUND


def test_deleting_a_model_of_ollamas_leaves_its_blobs_and_says_so(
    ollama: Ollama, writer: Writer, weights: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    ollama.add(PHI, weights)
    before = blobs(ollama)
    with caplog.at_level(logging.INFO):
        writer.delete(PHI_NAME)
    assert blobs(ollama) == before
    assert "stay in the library" in caplog.text
    assert not (ollama.root / "manifests" / "registry.ollama.ai").exists()


def test_a_blob_that_ollama_put_back_is_not_ours_any_more(
    ollama: Ollama, writer: Writer, weights: bytes
) -> None:
    written(writer, "phi", weights)
    path = ollama.path_of(f"sha256:{digest_of(weights)}")
    path.rename(path.with_name("old"))
    ollama.blob(weights)
    path.with_name("old").unlink()
    writer.delete(PHI_NAME)
    assert path.exists()


def test_a_damaged_model_can_be_deleted_and_nothing_is_pruned_beside_one(
    ollama: Ollama, writer: Writer, weights: bytes
) -> None:
    written(writer, "phi", weights)
    written(writer, "good", weights, b"good")
    ollama.manifest(PHI, b"{")
    before = blobs(ollama)
    writer.delete(parse_name("good"))
    assert blobs(ollama) == before
    writer.delete(PHI_NAME)
    assert names(Catalog(Library(ollama.root), None)) == []


def test_nothing_is_pruned_beside_directories_without_end(
    ollama: Ollama, writer: Writer, weights: bytes
) -> None:
    written(writer, "phi", weights)
    made = [ollama.root / "manifests"]
    for _ in range(1200):  # more than functions that call themselves may go, and less than a path
        made.append(made[-1] / "a")
        made[-1].mkdir()
    try:
        before = blobs(ollama)
        writer.delete(PHI_NAME)
        assert blobs(ollama) == before
        assert names(Catalog(Library(ollama.root), None)) == []
    finally:
        for directory in reversed(made[1:]):  # what cleans up behind tests calls itself, too
            directory.rmdir()


def test_what_somebody_holds_or_has_staged_is_not_pruned(
    ollama: Ollama, writer: Writer, weights: bytes
) -> None:
    written(writer, "phi", weights, b"held", b"staged")
    writer.keep(b"staged")
    with writer.hold() as hold:
        hold.add(digest_of(b"held"))
        writer.delete(PHI_NAME)
        assert blobs(ollama) == blob_names(b"held", b"staged")
    staged = ollama.root / ".pronk" / "staged"
    assert {path.name for path in staged.iterdir()} == blob_names(b"staged")


def test_what_is_found_is_there_to_stay_for_whoever_holds_it(
    ollama: Ollama, writer: Writer, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(writer, "phi", weights)
    looked, found = threading.Event(), threading.Event()

    def prune(*given: Any) -> Pruned:
        looked.set()  # at who holds what
        found.wait(0.2)
        return pruning.prune(*given)

    monkeypatch.setattr(writing, "prune", prune)
    deletion = threading.Thread(target=writer.delete, args=(PHI_NAME,))
    deletion.start()
    assert looked.wait(PATIENCE)
    with writer.hold() as hold:
        hold.add(digest_of(weights))
        path = writer.find(digest_of(weights))
        found.set()
        deletion.join()
        assert path is None or path.exists()


def test_what_is_added_to_a_hold_that_was_closed_is_not_held_for_ever(
    ollama: Ollama, writer: Writer, weights: bytes
) -> None:
    with writer.hold() as hold:
        pass
    hold.add(digest_of(weights))  # by the thread of a change that was cancelled
    written(writer, "phi", weights)
    writer.delete(PHI_NAME)
    assert writer.find(digest_of(weights)) is None


def test_what_another_one_holds_stays_staged_until_it_is_let_go(
    ollama: Ollama, writer: Writer, weights: bytes
) -> None:
    staged = adopted(writer, weights)
    with writer.hold() as hold:
        hold.add(digest_of(weights))
        path = writer.find(digest_of(weights))
        written(writer, "phi", weights)
        assert path == staged
        assert staged.read_bytes() == weights
    written(writer, "other", weights)
    assert left_over(ollama) == []


def test_a_copy_is_the_same_model_and_an_overwritten_one_is_told(
    ollama: Ollama, writer: Writer, weights: bytes, catalog: Catalog
) -> None:
    digest = written(writer, "phi", weights)
    assert writer.copy(PHI_NAME, parse_name("eva/two")) is None
    assert Library(ollama.root).load(parse_name("eva/two")).digest == digest
    assert writer.copy(PHI_NAME, parse_name("PHI")) is None
    assert writer.delete(PHI_NAME) is None
    other = written(writer, "other", weights, b"other")
    assert writer.copy(parse_name("eva/two"), parse_name("other")) == other
    assert blobs(ollama) == blob_names(weights, b"{}")
    assert sorted(names(catalog)) == ["eva/two:latest", "other:latest"]
    assert writer.delete(parse_name("other")) is None
    assert writer.delete(parse_name("eva/two")) == digest
    with pytest.raises(PronkError) as caught:
        writer.copy(PHI_NAME, parse_name("other"))
    assert caught.value.code is Code.NOT_FOUND


def test_what_replaces_a_model_tells_which_one_has_no_name_any_more(
    ollama: Ollama, writer: Writer, weights: bytes
) -> None:
    first = written(writer, "phi", weights)
    assert writer.replace(PHI_NAME, manifest(weights)) == Replaced(None, 0)
    writer.keep(b"new")
    newer = manifest(weights, layer("license", b"new"))
    assert writer.replace(PHI_NAME, newer) == Replaced(first, 0)
    writer.copy(PHI_NAME, parse_name("copy"))
    assert writer.replace(PHI_NAME, manifest(weights)) == Replaced(None, 0)
    assert writer.replace(parse_name("unknown"), manifest(weights)) == Replaced(None, 0)
    assert writer.replace(parse_name("copy"), manifest(weights)).removed == 1  # b"new"


def test_nothing_is_written_or_deleted_through_links(
    ollama: Ollama, writer: Writer, weights: bytes, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    (outside / "phi").mkdir(parents=True)
    (outside / "phi" / "latest").write_bytes(manifest(weights))
    written(writer, "good", weights)
    library = ollama.root / "manifests" / "registry.ollama.ai"
    (library / "eva").symlink_to(outside)
    for change in (
        lambda: written(writer, "eva/phi", weights),
        lambda: written(writer, "eva/new", weights),
        lambda: writer.copy(parse_name("good"), parse_name("eva/phi")),
        lambda: writer.delete(parse_name("eva/phi")),
    ):
        with pytest.raises(PronkError) as caught:
            change()
        assert str(tmp_path) not in caught.value.message
    assert [path.name for path in outside.iterdir()] == ["phi"]
    assert (outside / "phi" / "latest").read_bytes() == manifest(weights)
    # A link in a blob's place is replaced; what it leads to is not.
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    link = ollama.path_of(f"sha256:{digest_of(b'new')}")
    link.symlink_to(secret)
    written(writer, "good", weights, b"new")
    assert secret.read_bytes() == b"secret"
    assert link.read_bytes() == b"new"
    assert not link.is_symlink()
    # So is one in a manifest's place.
    tag = library / "library" / "good" / "linked"
    tag.symlink_to(secret)
    written(writer, "good:linked", weights)
    assert secret.read_bytes() == b"secret"
    assert not tag.is_symlink()


def test_an_own_directory_that_is_a_link_is_not_used(
    ollama: Ollama, writer: Writer, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    ollama.root.mkdir()
    (ollama.root / ".pronk").symlink_to(tmp_path / "outside")
    with pytest.raises(PronkError, match="a link, a file or a directory stands in"):
        writer.keep(b"x")
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_file_that_is_adopted_is_a_file(writer: Writer, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    secret.chmod(0o600)
    path = writer.partial(digest_of(b"secret"))
    path.symlink_to(secret)
    with pytest.raises(PronkError):
        writer.adopt(path, digest_of(b"secret"))
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_one_server_changes_a_library_and_another_one_reads_it(
    ollama: Ollama, writer: Writer, weights: bytes
) -> None:
    written(writer, "phi", weights)
    second = Writer(ollama.root)
    second.tidy()
    for change in (lambda: second.delete(PHI_NAME), lambda: second.keep(b"x"), second.scratch):
        with pytest.raises(PronkError) as caught:
            change()
        assert caught.value.code is Code.UNAVAILABLE
        assert "another Pronk server" in caught.value.message
    assert second.find(digest_of(weights))
    assert names(Catalog(Library(ollama.root), None)) == ["phi:latest"]
    writer.delete(PHI_NAME)


READ_ONLY = """
import os, sys
from pathlib import Path
from pronk.protocol.errors import PronkError
from pronk.workers.store.writing import Replaced, Writer
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    Writer(Path(sys.argv[1])).keep(b"x")
except PronkError as error:
    print(error.code, error.message)
"""


def test_a_library_of_another_user_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """In a process of its own, which gives up the rights of root where it has them."""
    library = tmp_path / "models"
    library.mkdir(mode=0o555)
    for above in (tmp_path, *tmp_path.parents[:2]):
        above.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY, str(library)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout.startswith("unavailable "), done.stderr
    assert "PRONK_MODELS" in done.stdout
    assert str(tmp_path) not in done.stdout
    assert list(library.iterdir()) == []


FULL = """
import sys
from pathlib import Path
from pronk.protocol.errors import PronkError
from pronk.workers.store.writing import Replaced, Writer
try:
    Writer(Path(sys.argv[1])).keep(bytes(2**20))
except PronkError as error:
    print(error.code, error.message)
"""


def test_a_write_that_the_disk_refuses_is_told_as_such(ollama: Ollama) -> None:
    """The kernel refuses what is beyond a limit on files as it does on a full disk."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(ollama.root)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16)),
    )
    assert done.stdout.startswith("storage_full "), done.stderr
    assert str(ollama.root) not in done.stdout


def test_room_is_asked_for_before_it_is_needed(writer: Writer) -> None:
    writer.require_room(0)
    with pytest.raises(PronkError) as caught:
        writer.require_room(2**62)
    assert caught.value.code is Code.STORAGE_FULL
    assert "4611686018.4 GB" in caught.value.message


def test_blobs_that_another_server_removes_are_put_back_or_the_model_is_not_written(
    ollama: Ollama, writer: Writer, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other server is played at the one moment at which it can do harm."""
    from pronk.workers.store import writing

    real = writing.write_manifest
    path = ollama.path_of(f"sha256:{digest_of(weights)}")

    def prune_as_ollama_does(*args: object) -> None:
        path.unlink()
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(writing, "write_manifest", prune_as_ollama_does)
    digest = written(writer, "phi", weights)
    assert Library(ollama.root).load(PHI_NAME).digest == digest
    assert path.read_bytes() == weights
    # Nothing is left to put it back from.
    with pytest.raises(PronkError) as caught:
        writer.commit(parse_name("other"), manifest(weights))
    assert caught.value.code is Code.UNAVAILABLE
    assert Library(ollama.root).find(parse_name("other")) is None
