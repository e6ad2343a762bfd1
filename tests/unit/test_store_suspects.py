"""Which orders are refused because they kill the store. A life of the store is a `Suspects` here,
and a death is that the next one begins without the end of the one before.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.workers.store import suspects
from pronk.workers.store.deaths import Death, LastWords
from pronk.workers.store.report import Report
from pronk.workers.store.suspects import Case, Suspects
from support.calls import PATIENCE, until

BOOT = "0c8fd2a5"


def unheard(
    status: str, digest: str = "", total: int | None = None, completed: int | None = None
) -> None:
    pass


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "orders.json"


@pytest.fixture
def graves() -> Iterator[ExitStack]:
    """What was under way in lives that ended: it is told so when the test is over."""
    with ExitStack() as stack:
        yield stack


class Lives:
    """One life of the store after the other."""

    def __init__(self, place: Path, graves: ExitStack) -> None:
        self.place = place
        self._graves = graves
        self.now = Suspects(place, BOOT, Death.UNKNOWN, settled=0)

    def die(self, death: Death = Death.FROM_WITHIN, boot: str = BOOT) -> None:
        before = self.now.close
        self._graves.callback(before)
        self.now = Suspects(self.place, boot, death, settled=0)

    async def begin(self, order: str) -> tuple[Case, Report]:
        """Begins an order that will be under way when this life ends."""
        case = self.now.case(order, order)
        # Left when the test is over: then its file is another life's.
        entered = case.__enter__()
        async with asyncio.timeout(PATIENCE):
            await entered.turn()
        return entered, entered.watching(unheard)

    def is_refused(self, order: str) -> bool:
        """Whether it may not be begun. Who may leaves without having begun it."""
        case = self.now.case(order, order)
        with ExitStack() as stack:
            try:
                stack.enter_context(case)
            except PronkError as error:
                return error.code is Code.INTERNAL and "not tried again" in error.message
            stack.pop_all()
        return False


@pytest.fixture
def lives(place: Path, graves: ExitStack) -> Lives:
    return Lives(place, graves)


async def test_an_order_that_kills_three_times_is_refused_and_others_are_not(lives: Lives) -> None:
    for _ in range(3):
        _, report = await lives.begin("deadly")
        report("pulling manifest")
        report("pulling abc", "sha256:abc", 100, 50)
        lives.die()
    assert lives.is_refused("deadly")
    assert lives.is_refused("deadly")
    assert not lives.is_refused("other")
    lives.die()
    assert lives.is_refused("deadly")


async def test_a_step_forward_between_deaths_clears_an_order(lives: Lives) -> None:
    for completed in range(10):
        _, report = await lives.begin("large")
        report("pulling abc", "sha256:abc", 2**30, completed * suspects.STEP)
        lives.die()
    for _ in range(2):
        _, report = await lives.begin("large")
        report("pulling abc", "sha256:abc", 2**30, 9 * suspects.STEP + suspects.STEP - 1)
        lives.die()
    assert lives.is_refused("large")


async def test_steps_count_from_where_it_was_at_the_last_death(lives: Lives) -> None:
    """What had come may be gone: thrown away, or the whole library."""
    _, report = await lives.begin("large")
    report("pulling abc", "sha256:abc", 2**30, 2**30)
    lives.die()
    for completed in range(6):
        _, report = await lives.begin("large")
        report("pulling abc", "sha256:abc", 2**30, completed * suspects.STEP)
        lives.die()
    assert not lives.is_refused("large")


async def test_who_reports_another_thing_than_before_is_cleared(lives: Lives) -> None:
    for count in range(1, 8):
        _, report = await lives.begin("many")
        for number in range(count):
            report(f"step {number}")
        lives.die()
    assert not lives.is_refused("many")


async def test_kills_from_outside_take_a_hundred_in_a_row(lives: Lives) -> None:
    for _ in range(100):
        assert not lives.is_refused("unlucky")
        await lives.begin("unlucky")
        lives.die(Death.UNKNOWN)
    assert lives.is_refused("unlucky")


async def test_an_end_in_order_counts_for_nothing(lives: Lives) -> None:
    for _ in range(4):
        await lives.begin("waiting")
        lives.now.close()
        lives.die()
    assert not lives.is_refused("waiting")


async def test_an_end_in_order_is_a_new_beginning(lives: Lives) -> None:
    for _ in range(3):
        await lives.begin("deadly")
        lives.die()
    assert lives.is_refused("deadly")
    lives.now.close()
    lives.die()
    assert not lives.is_refused("deadly")


async def test_what_was_answered_is_forgotten(lives: Lives) -> None:
    for _ in range(2):
        await lives.begin("doubtful")
        lives.die()
    with lives.now.case("doubtful", "doubtful") as case:
        await case.turn()
    for _ in range(2):
        await lives.begin("doubtful")
        lives.die()
    assert not lives.is_refused("doubtful")


async def test_who_goes_away_does_not_clear_the_order(lives: Lives) -> None:
    for _ in range(2):
        await lives.begin("deadly")
        lives.die()

    async def wait() -> None:
        with lives.now.case("deadly", "deadly") as case:
            await case.turn()
            begun.set()
            await asyncio.Future()

    begun = asyncio.Event()
    waiting = asyncio.create_task(wait())
    await begun.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await lives.begin("deadly")
    lives.die()
    assert lives.is_refused("deadly")


async def test_one_order_given_twice_is_under_way_until_both_have_ended(lives: Lives) -> None:
    for _ in range(3):
        await lives.begin("twin")
        with lives.now.case("twin", "twin") as case:
            case.watching(unheard)("pulling manifest")
        lives.die()
    assert lives.is_refused("twin")


async def test_suspects_are_tried_one_after_the_other(lives: Lives) -> None:
    for order in ("deadly", "innocent"):
        await lives.begin(order)
    lives.die()
    _, report = await lives.begin("innocent")
    waiting = asyncio.create_task(lives.begin("deadly"))
    await lives.begin("new")  # nobody suspects it
    await asyncio.sleep(0)
    assert not waiting.done()
    report("pulling manifest")
    await waiting
    for step in range(2):
        lives.die()
        # Whoever was cleared is beside it, and is not accused.
        _, report = await lives.begin("innocent")
        report("pulling abc", "sha256:abc", 2**30, (step + 1) * suspects.STEP)
        await lives.begin("deadly")
    lives.die()
    assert lives.is_refused("deadly")
    assert not lives.is_refused("innocent")
    assert not lives.is_refused("new")


async def test_who_was_tried_for_a_while_is_not_accused_of_what_the_next_one_does(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that makes no step forward, and always comes first."""
    monkeypatch.setattr(suspects, "ALONE_SECONDS", 0.05)
    for _ in range(4):
        for order in ("silent", "deadly"):
            await lives.begin(order)
        lives.die()
    assert lives.is_refused("deadly")
    assert not lives.is_refused("silent")


async def test_who_waits_for_its_turn_is_not_accused(lives: Lives) -> None:
    for order in ("deadly", "innocent"):
        await lives.begin(order)
    for _ in range(3):
        lives.die()
        await lives.begin("deadly")
        waiting = asyncio.create_task(lives.begin("innocent"))
        await asyncio.sleep(0)
        waiting.cancel()
    lives.die()
    assert lives.is_refused("deadly")
    assert not lives.is_refused("innocent")


async def test_ten_minutes_later_and_after_a_restart_of_the_host_nothing_is_held_against_it(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await lives.begin("deadly")
        lives.die()
    assert lives.is_refused("deadly")
    with monkeypatch.context() as patch:
        patch.setattr(suspects, "KEPT_SECONDS", 0.0)
        assert not lives.is_refused("deadly")
    lives.die(boot="another boot")
    assert not lives.is_refused("deadly")


async def test_the_file_is_bounded(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "MOST", 8)
    for number in range(20):
        await lives.begin(f"order {number}")
        lives.die(Death.UNKNOWN)
    assert len(json.loads(lives.place.read_bytes())["orders"]) <= 8
    assert len([*lives.place.parent.iterdir()]) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"boot": 1, "orders": {}}',
        b'{"boot": "%s", "orders": [1]}' % BOOT.encode(),
        b'{"boot": "%s", "orders": {"a": 1, "b": ["b", "7", 0, 0, 1, false, 0.0]}}' % BOOT.encode(),
        b"\xff" * 100,
    ],
)
def test_a_file_that_makes_no_sense_accuses_nobody(
    place: Path, graves: ExitStack, content: bytes
) -> None:
    place.write_bytes(content)
    lives = Lives(place, graves)
    assert not lives.is_refused("a")
    assert not lives.is_refused("b")


async def test_a_directory_that_cannot_be_written_refuses_nobody(
    tmp_path: Path, graves: ExitStack
) -> None:
    lives = Lives(tmp_path / "missing" / "orders.json", graves)
    for _ in range(4):
        await lives.begin("any")
        lives.die()
    assert not lives.is_refused("any")


async def test_bytes_alone_are_written_now_and_then(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    write: Callable[[Suspects], None] = Suspects.write
    monkeypatch.setattr(Suspects, "write", lambda self: (written.append(1), write(self))[1])
    _, report = await lives.begin("large")
    for number in range(1000):
        report("pulling abc", "sha256:abc", 2**40, number * suspects.STEP)
    assert len(written) < 100
    await until(lambda: suspects.time.monotonic() - lives.now._written_at > 0.25)
    report("pulling abc", "sha256:abc", 2**40, 2**39)
    assert json.loads(lives.place.read_bytes())["orders"]["large"][5] == 2**39


class TestLastWords:
    def begun(self, tmp_path: Path, killed: int = 0) -> Death:
        (tmp_path / "vmstat").write_text(f"pgfault 12\noom_kill {killed}\n")
        return LastWords(tmp_path / "died", tmp_path / "vmstat").begin()

    @pytest.fixture(autouse=True)
    def _quiet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # pytest has its own, and this process lives on.
        monkeypatch.setattr("faulthandler.enable", lambda file: None)

    def test_nothing_was_there_and_nothing_was_said(self, tmp_path: Path) -> None:
        assert self.begun(tmp_path) is Death.UNKNOWN
        assert self.begun(tmp_path) is Death.UNKNOWN

    def test_what_was_written_by_a_dying_process(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.begun(tmp_path)
        with (tmp_path / "died").open("a") as file:
            file.write("Fatal Python error: Segmentation fault\n")
        assert self.begun(tmp_path) is Death.FROM_WITHIN
        assert "Segmentation fault" in caplog.text
        assert self.begun(tmp_path) is Death.UNKNOWN

    def test_an_exception(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        words = LastWords(tmp_path / "died", tmp_path / "none")
        words.begin()
        words.note(RuntimeError("no loop"))
        assert self.begun(tmp_path) is Death.FROM_WITHIN
        assert "no loop" in caplog.text

    def test_no_memory(self, tmp_path: Path) -> None:
        self.begun(tmp_path, 3)
        assert self.begun(tmp_path, 4) is Death.FROM_WITHIN
        assert self.begun(tmp_path, 4) is Death.UNKNOWN
        assert self.begun(tmp_path, 0) is Death.UNKNOWN

    def test_a_file_of_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "died").write_bytes(b"\xff\n" * 100_000)
        assert self.begun(tmp_path) is Death.UNKNOWN

    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "other").write_bytes(b"precious")
        (tmp_path / "died").symlink_to(tmp_path / "other")
        assert self.begun(tmp_path) is Death.UNKNOWN
        assert (tmp_path / "other").read_bytes() == b"precious"
