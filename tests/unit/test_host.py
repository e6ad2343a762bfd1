"""How many cores a process may use, within what a container may have."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from pronk.protocol.host import cores, own_memory, total_memory


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "own"
    file.write_text("0::/site.slice/pronk.service\n")
    return file


def topology(root: Path, siblings: dict[int, str]) -> Path:
    for cpu, text in siblings.items():
        place = root / f"cpu{cpu}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(f"{text}\n")
    return root


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
@pytest.mark.parametrize(
    ("allowed", "expected"), [({0, 1, 2, 3}, 2), ({0, 2}, 1), ({0, 1}, 2), ({3}, 1)]
)
def test_threads_of_one_core_count_once(
    tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch, allowed: set[int], expected: int
):
    cpus = topology(tmp_path / "cpus", {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed)
    assert cores(tmp_path, own, cpus) == expected


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 4), ("250000 100000", 2), ("50000 100000", 1), ("400000 0", 4), ("?", 4)],
)
def test_a_quota_of_time_counts_as_whole_cores(
    tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch, quota: str, expected: int
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    cpus = topology(tmp_path / "cpus", {cpu: str(cpu) for cpu in range(4)})
    group = tmp_path / "groups" / "site.slice"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text(quota)
    assert cores(tmp_path / "groups", own, cpus) == expected


def test_a_host_that_tells_nothing_has_a_core_at_least(tmp_path: Path):
    assert 1 <= cores(tmp_path, tmp_path / "none", tmp_path) <= (psutil.cpu_count() or 1)


def test_a_limit_is_all_the_memory_that_there_is(tmp_path: Path, own: Path):
    group = tmp_path / "site.slice"
    group.mkdir()
    assert total_memory(tmp_path, own) == psutil.virtual_memory().total
    (group / "memory.max").write_text("1000000\n")
    assert total_memory(tmp_path, own) == 1_000_000


def test_own_memory_grows_by_what_is_written_and_not_by_what_is_mapped(tmp_path: Path):
    import mmap

    path = tmp_path / "file"
    path.write_bytes(bytes(64 << 20))
    before = own_memory()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) == 0
        assert own_memory() - before < 16 << 20
    kept = bytearray(b"x" * (64 << 20))
    assert own_memory() - before > 60 << 20
    assert kept
