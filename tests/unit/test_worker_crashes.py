"""A process that keeps dying young waits longer and longer; nobody else ever waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from pronk.workers.crashes import SHORT_LIFE, CrashHistory, CrashRecord


def test_short_lives_in_a_row_wait_longer_up_to_a_bound() -> None:
    history, now, delays = CrashHistory(0, 0.0), 0.0, []
    for _ in range(10):
        now += 1.0
        history = history.reborn(now)
        delays.append(history.delay)
    assert delays == [0.0, 0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]


def test_a_kill_after_a_long_life_is_no_crash_loop() -> None:
    history = CrashHistory(5, 100.0)
    assert history.reborn(100.0 + SHORT_LIFE + 1).delay == 0.0


def test_a_clock_that_was_set_back_is_no_crash_loop() -> None:
    assert CrashHistory(5, 100.0).reborn(50.0).delay == 0.0


def test_a_clean_exit_forgets_every_crash(tmp_path: Path) -> None:
    record = CrashRecord(tmp_path / "w.crashes")
    delays = [record.begin() for _ in range(4)]
    assert delays == [0.0, 0.0, 0.0, 0.5]
    record.clear()
    record.clear()
    assert record.begin() == 0.0


def test_the_wait_is_no_part_of_the_life_that_follows(tmp_path: Path) -> None:
    record = CrashRecord(tmp_path / "w.crashes")
    delays = [record.begin() for _ in range(6)]
    assert delays == sorted(delays), "births that were moved into the future count as short lives"
    assert delays[-1] > delays[3] > 0


@pytest.mark.parametrize("content", ["", "nonsense", "[1]", "{}", "[null, null]", "[1e999, 3]"])
def test_a_damaged_record_starts_anew(tmp_path: Path, content: str) -> None:
    path = tmp_path / "w.crashes"
    path.write_text(content)
    assert CrashRecord(path).begin() == 0.0
