from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronk.workers.store.pulling import journal as journals
from pronk.workers.store.pulling import partial as partials
from pronk.workers.store.pulling.journal import Arrived, Journal, read_journal
from pronk.workers.store.pulling.partial import JOURNALED, Partial, Shortened
from pronk.workers.store.pulling.ranges import Ranges

DIGEST = "ab" * 32
MIB = 1024 * 1024
SIZE = 100 * MIB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / f"sha256-{DIGEST}.json"


@pytest.fixture
def written(path: Path) -> Path:
    """A journal of a process that was killed: some of what is there has reached the disk."""
    journal = Journal(path, DIGEST, SIZE, "boot")
    journal.begin(Arrived())
    journal.note(0, 1000)
    journal.note(5000, 6000)
    os.close(journal.settle([(0, 1000)]))
    journal.note(1000, 2000)
    journal.close()
    return path


def test_after_a_kill_all_that_was_written_is_there(written: Path) -> None:
    arrived = read_journal(written, DIGEST, SIZE, "boot")
    assert arrived.there == Ranges([(0, 2000), (5000, 6000)])
    assert arrived.durable == Ranges([(0, 1000)])


@pytest.mark.parametrize("boot", ["another", ""])
def test_after_the_host_went_down_only_what_had_reached_the_disk_is(
    written: Path, boot: str
) -> None:
    assert read_journal(written, DIGEST, SIZE, boot).there == Ranges([(0, 1000)])


@pytest.mark.parametrize(("digest", "size"), [("cd" * 32, SIZE), (DIGEST, SIZE - 1)])
def test_a_journal_of_something_else_says_nothing(written: Path, digest: str, size: int) -> None:
    assert read_journal(written, digest, size, "boot") == Arrived()


@given(place=st.integers(0, 400), change=st.sampled_from([b"", b"\0" * 64, b"\xff", b"\n"]))
def test_what_is_damaged_never_claims_more(
    tmp_path_factory: pytest.TempPathFactory, place: int, change: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    journal = Journal(path, DIGEST, SIZE, "boot")
    journal.begin(Arrived())
    for number in range(4):
        journal.note(number * 10, number * 10 + 5)
    journal.close()
    content = path.read_bytes()
    path.write_bytes(content[:place] + change + content[place + len(change) :][: 500 * len(change)])
    claimed = read_journal(path, DIGEST, SIZE, "boot").there
    assert claimed.without(Ranges([(0, 5), (10, 15), (20, 25), (30, 35)])).size == 0


@pytest.mark.parametrize(
    "entry", ['{"there":[[0,200]]}', '{"there":[[5,3]]}', '{"there":[["a",3]]}', '{"there":7}', "7"]
)
def test_what_cannot_be_is_not_believed(path: Path, entry: str) -> None:
    head = f'{{"journal":1,"blob":"{DIGEST}","size":100,"boot":"b"}}'
    lines = [head, '{"there":[[0,10]]}', entry, '{"there":[[20,30]]}']
    path.write_bytes(b"".join(_line(line) for line in lines))
    assert read_journal(path, DIGEST, 100, "b").there == Ranges([(0, 10)])


def _line(text: str) -> bytes:
    return b"%08x %s\n" % (journals.zlib.crc32(text.encode()), text.encode())


@pytest.mark.parametrize("kind", ["none", "directory", "link", "pipe"])
def test_what_is_no_file_says_nothing(path: Path, written: Path, kind: str) -> None:
    path.rename(path.with_name("elsewhere"))
    match kind:
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to(path.with_name("elsewhere"))
        case "pipe":
            os.mkfifo(path)
        case _:
            pass
    assert read_journal(path, DIGEST, SIZE, "boot") == Arrived()


def test_a_journal_that_grows_too_long_is_written_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "_LONGEST", 2000)
    journal = Journal(path, DIGEST, SIZE, "boot")
    journal.begin(Arrived())
    os.close(journal.settle([(0, 7)]))
    for number in range(1000):
        journal.note(number * 10, number * 10 + 10)
        assert path.stat().st_size < 3000
    journal.close()
    arrived = read_journal(path, DIGEST, SIZE, "boot")
    assert arrived.there == Ranges([(0, 10_000)])
    assert arrived.durable == Ranges([(0, 7)])


CONTENT = os.urandom(JOURNALED + 3 * MIB + 17)


@pytest.fixture
def partial(tmp_path: Path) -> Partial:
    partial = Partial(tmp_path / "sha256-x", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
    partial.open()
    return partial


def reopened(partial: Partial) -> Partial:
    again = Partial(partial.path, partial.digest, partial.size)
    again.open()
    return again


def put(partial: Partial, start: int, end: int) -> None:
    partial.write(start, [CONTENT[start : start + 5], CONTENT[start + 5 : end]])


def test_bytes_in_any_order_and_the_digest_of_the_whole(partial: Partial) -> None:
    put(partial, 3 * MIB, len(CONTENT))
    put(partial, 0, 2 * MIB)
    assert partial.follow(2 * MIB) is None
    put(partial, 2 * MIB, 3 * MIB)
    assert partial.there == Ranges([(0, len(CONTENT))])
    assert partial.follow(len(CONTENT)) == partial.digest
    partial.close()


def test_what_a_killed_process_wrote_is_there_and_part_of_the_digest(partial: Partial) -> None:
    put(partial, 0, 2 * MIB)
    put(partial, 4 * MIB, 5 * MIB)
    again = reopened(partial)  # the first one was never closed
    assert again.there == Ranges([(0, 2 * MIB), (4 * MIB, 5 * MIB)])
    put(again, 2 * MIB, 4 * MIB)
    put(again, 5 * MIB, len(CONTENT))
    assert again.follow(len(CONTENT)) == again.digest
    again.close()
    partial.close()


def test_after_a_power_cut_what_was_settled_is_there(
    partial: Partial, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(partial, 0, 2 * MIB)
    partial.settle()
    put(partial, 2 * MIB, 4 * MIB)
    monkeypatch.setattr(partials, "boot_id", lambda: "the next one")
    again = reopened(partial)
    assert again.there == Ranges([(0, 2 * MIB)])
    # And what it may have been is gone, before anything is written behind it.
    assert again.path.stat().st_size == 2 * MIB
    put(again, 3 * MIB, 4 * MIB)
    assert reopened(again).there == Ranges([(0, 2 * MIB), (3 * MIB, 4 * MIB)])


def test_an_orderly_end_brings_everything_to_the_disk(
    partial: Partial, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(partial, 0, 2 * MIB)
    partial.close()
    monkeypatch.setattr(partials, "boot_id", lambda: "the next one")
    assert reopened(partial).there == Ranges([(0, 2 * MIB)])


def test_a_journal_without_its_file_claims_nothing_ever(partial: Partial) -> None:
    put(partial, 0, 4 * MIB)
    partial.close()
    partial.path.unlink()
    again = reopened(partial)
    assert again.there == Ranges()
    # The file grows beyond what the old journal spoke of; its holes are not what that meant.
    put(again, 5 * MIB, 6 * MIB)
    assert reopened(again).there == Ranges([(5 * MIB, 6 * MIB)])


def test_a_file_that_was_cut_has_only_what_it_has(partial: Partial) -> None:
    put(partial, 0, 4 * MIB)
    partial.close()
    os.truncate(partial.path, MIB)
    assert reopened(partial).there == Ranges([(0, MIB)])


def test_a_file_that_is_cut_meanwhile_is_noticed(partial: Partial) -> None:
    put(partial, 0, 4 * MIB)
    os.truncate(partial.path, MIB)
    with pytest.raises(Shortened):
        partial.follow(4 * MIB)
    partial.close()


def test_what_starts_over_has_nothing(partial: Partial) -> None:
    put(partial, 0, 4 * MIB)
    partial.follow(2 * MIB)
    partial.start_over()
    assert reopened(partial).there == Ranges()
    partial.write(0, [CONTENT])
    assert partial.follow(len(CONTENT)) == partial.digest
    partial.close()


def test_nothing_is_left_of_what_is_empty_or_small(tmp_path: Path, partial: Partial) -> None:
    partial.close()
    small = Partial(tmp_path / "sha256-small", DIGEST, 100)
    small.open()
    small.write(0, [b"x" * 50])
    small.close()
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "sha256-x").symlink_to(victim)
    partial = Partial(tmp_path / "sha256-x", DIGEST, SIZE)
    with pytest.raises(OSError, match="symbolic links"):
        partial.open()
    assert victim.read_bytes() == b"precious"


def test_a_closed_one_writes_nowhere(partial: Partial) -> None:
    partial.close()
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        put(partial, 0, MIB)
