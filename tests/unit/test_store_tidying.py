"""What processes that were killed, or stopped, leave in a library; and what the next one does."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pronk.protocol.names import parse_name
from pronk.workers.store import pruning
from pronk.workers.store.catalog import Catalog
from pronk.workers.store.layout import Library
from pronk.workers.store.neighbours import Neighbours
from pronk.workers.store.writing import Writer
from support.store import PHI, Ollama, names
from support.writing import adopted, digest_of, manifest, written

ROUNDS = 16
PATIENCE = 60.0


def own(ollama: Ollama, place: str) -> set[str]:
    return {path.name for path in (ollama.root / ".pronk" / place).iterdir()}


def blobs(ollama: Ollama) -> set[str]:
    return {path.name for path in (ollama.root / "blobs").iterdir()}


@pytest.fixture
def left(ollama: Ollama, weights: bytes) -> Ollama:
    """A library in which a process that is gone has a model, and everything unfinished."""
    writer = Writer(ollama.root)
    written(writer, "phi", weights)
    adopted(writer, b"staged")
    writer.partial(digest_of(b"partial")).write_bytes(b"par")
    (ollama.root / ".pronk" / "partial" / f"sha256-{digest_of(b'partial')}.json").write_bytes(b"{}")
    (writer.scratch() / "quantized").write_bytes(b"x")
    writer.incoming().write_bytes(b"x")
    (ollama.root / "manifests" / ".pronk-0123").write_bytes(b"x")
    (ollama.root / ".pronk" / "recorded" / "0123456789abcdef").write_bytes(b"x")
    journal = f"sha256-{digest_of(b'partial')}.json.new"
    (ollama.root / ".pronk" / "partial" / journal).write_bytes(b"x")
    orphan = adopted(writer, b"orphan")
    os.link(orphan, ollama.path_of(f"sha256:{digest_of(b'orphan')}"))
    orphan.unlink()
    writer.give_up()
    return ollama


def test_what_is_of_no_use_goes_at_the_start_and_the_rest_stays(
    left: Ollama, weights: bytes
) -> None:
    Writer(left.root).tidy()
    assert own(left, "scratch") == own(left, "uploads") == set()
    assert not (left.root / "manifests" / ".pronk-0123").exists()
    assert own(left, "staged") == {f"sha256-{digest_of(b'staged')}"}
    assert own(left, "partial") == {
        f"sha256-{digest_of(b'partial')}",
        f"sha256-{digest_of(b'partial')}.json",
    }
    assert own(left, "recorded") == {
        digest_of(content) for content in (weights, b"{}", b"staged", b"orphan")
    }
    assert f"sha256-{digest_of(b'orphan')}" in blobs(left)
    assert names(Catalog(Library(left.root), None)) == ["phi:latest"]


def test_what_nobody_came_back_for_in_a_week_goes(
    left: Ollama, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    left.blob(b"ollamas own")
    monkeypatch.setattr(pruning, "KEPT_SECONDS", -1.0)
    Writer(left.root).tidy()
    assert own(left, "staged") == own(left, "partial") == set()
    assert blobs(left) == {
        f"sha256-{digest_of(content)}" for content in (weights, b"{}", b"ollamas own")
    }
    assert own(left, "recorded") == {digest_of(weights), digest_of(b"{}")}


def test_nothing_is_tidied_while_another_server_works_there(left: Ollama) -> None:
    working = Writer(left.root)
    scratch = working.scratch()
    Writer(left.root).tidy()
    working.tidy()
    assert scratch.is_dir()


def test_what_was_committed_and_not_unstaged_is_unstaged(ollama: Ollama, weights: bytes) -> None:
    writer = Writer(ollama.root)
    written(writer, "phi", weights)
    adopted(writer, weights)
    writer.give_up()
    assert own(ollama, "staged") == {f"sha256-{digest_of(weights)}"}
    Writer(ollama.root).tidy()
    assert own(ollama, "staged") == set()
    assert ollama.path_of(f"sha256:{digest_of(weights)}").read_bytes() == weights


def test_links_in_pronks_own_directories_are_removed_and_not_followed(
    left: Ollama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"x")
    for place in ("scratch", "uploads"):
        (left.root / ".pronk" / place / "link").symlink_to(outside)
    (left.root / ".pronk" / "partial" / f"sha256-{'0' * 64}").symlink_to(outside / "file")
    monkeypatch.setattr(pruning, "KEPT_SECONDS", -1.0)
    Writer(left.root).tidy()
    assert own(left, "scratch") == own(left, "uploads") == own(left, "partial") == set()
    assert (outside / "file").read_bytes() == b"x"


def test_a_blob_that_is_gone_is_told(
    ollama: Ollama, weights: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(ollama.root)
    written(writer, "phi", weights)
    writer.give_up()
    ollama.path_of(f"sha256:{digest_of(weights)}").unlink()
    Writer(ollama.root).tidy()
    assert "does another server remove blobs" in caplog.text


def test_signs_of_ollama_are_told_once(
    ollama: Ollama, weights: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    ollama.add(PHI, weights)
    Neighbours(ollama.root).look()
    assert "another server" not in caplog.text
    (ollama.root / "blobs" / f"sha256-{'0' * 64}-partial-3").write_bytes(b"x")
    writer = Writer(ollama.root)
    for _ in range(3):
        writer.keep(b"x")
    assert caplog.text.count("another server uses the library") == 1


def test_an_ollama_that_serves_this_library_is_told(
    ollama: Ollama, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A program of that name, which sleeps."""
    ollama.root.mkdir()
    program = tmp_path / "ollama"
    program.symlink_to(sys.executable)
    (tmp_path / "serve").write_text("import time; print(flush=True); time.sleep(60)")
    for library, told in ((tmp_path, False), (ollama.root, True)):
        environment = os.environ | {"OLLAMA_MODELS": str(library)}
        with subprocess.Popen(
            [program, "serve"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE
        ) as process:
            try:
                assert process.stdout
                process.stdout.readline()
                assert psutil.Process(process.pid).cmdline()[1] == "serve"
                Neighbours(ollama.root).look()
            finally:
                process.kill()
        assert ("`ollama serve` runs" in caplog.text) == told


CHANGES = """
import itertools, os, random, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from pronk.protocol.names import parse_name
from pronk.protocol.process import die_with_parent
from pronk.workers.store.writing import Writer
from support.writing import written

def change(seed):
    draw = random.Random(seed)
    shared = bytes(100_000)
    writer = Writer(Path(sys.argv[1]))
    writer.tidy()
    for count in itertools.count():
        if count == 1:
            print("begun", flush=True)
        name = draw.choice(["phi", "eva/two", "hf.co/org/repo:Q4"])
        written(writer, name, draw.choice([os.urandom(50_000), shared]), os.urandom(20), b"kept")
        writer.copy(parse_name(name), parse_name("copy:" + draw.choice("abc")))
        gone = parse_name(draw.choice([name, "copy:a", "copy:b"]))
        if writer.digest_of(gone):
            writer.delete(gone)

for line in sys.stdin:
    child = os.fork()
    if not child:
        die_with_parent()
        print(os.getpid(), flush=True)
        change(int(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""For each line: changes a library in a child until that is killed, and tells of it when it has
begun, and how it ended."""


def whole(ollama: Ollama) -> int:
    """Checks that everything in the library is what it should be; returns the number of models."""
    library = Library(ollama.root)
    found = list(library.names())
    for name in found:
        model = library.load(name)
        for layer in model.layers:
            assert ollama.path_of(f"sha256:{layer.digest}").stat().st_size == layer.size
    for path in (ollama.root / "blobs").iterdir():
        digest = path.name.removeprefix("sha256-")
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    return len(found)


def test_a_kill_at_any_moment_leaves_what_was_complete(ollama: Ollama, weights: bytes) -> None:
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    ollama.add("registry.ollama.ai/library/ollamas/latest", weights)
    tests = str(Path(__file__).parents[1])
    models = 0
    command = [sys.executable, "-c", CHANGES, str(ollama.root), tests]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin
        assert process.stdout
        try:
            for number in range(ROUNDS):
                print(seed + number, file=process.stdin, flush=True)
                child = int(process.stdout.readline())
                begun = number % 2 and process.stdout.readline()  # else it may not have begun
                time.sleep(draw.uniform(0.0, 0.1))
                os.kill(child, signal.SIGKILL)
                end = process.stdout.readline()
                if end == "begun\n" and not begun:
                    end = process.stdout.readline()
                assert int(end) == -signal.SIGKILL, f"seed {seed}"
                models += whole(ollama)
        finally:
            process.kill()
    assert models > ROUNDS, f"seed {seed}"  # there was more than Ollama's own at times
    writer = Writer(ollama.root)
    writer.tidy()
    whole(ollama)
    # What is left of all of them goes with its last names: nothing of ours is forgotten.
    for name in list(Library(ollama.root).names()):
        if name.model != "ollamas":
            writer.delete(name)
    assert {json.loads(manifest(weights))["layers"][0]["digest"].replace(":", "-")} <= blobs(ollama)
    assert list(Library(ollama.root).names()) == [parse_name("ollamas")]
