"""What is batched, reused and moved gives right texts all the same, with every kind of model.

See `support.right_text` for what a right text is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pronk.protocol.messages.generation import ChatMessage, Kind
from pronk.protocol.messages.placement import CacheType
from support.engines import Bench, Run
from support.models import write_reciting_model
from support.recurrent import HYBRID, RECURRENT, write_recurrent_model
from support.right_text import assert_right

DEMO = Path(__file__).resolve().parents[2] / "workers" / "store" / "demo" / "demo.gguf"
OPTIONS = {"temperature": 0, "num_predict": 24}
SYSTEM = "you answer in the words of those who asked before you, and of nobody else. "


@pytest.fixture(scope="module", params=["recurrent", "hybrid", "demo"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "demo":
        return DEMO
    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    write_recurrent_model(path, HYBRID if request.param == "hybrid" else RECURRENT)
    return path


@pytest.fixture
def bench(path: Path) -> Iterator[Bench]:
    bench = Bench(path, slots=4)
    yield bench
    bench.close()


def assert_all_right(path: Path, runs: list[Run]) -> None:
    for run in runs:
        assert run.failure is None
        assert_right(path, run.prepared.prompt, run.tokens)


def test_side_by_side(path: Path, bench: Bench) -> None:
    prompts = [f"{'abcdefgh'[i]} tells the {i}th story " * (3 * i + 1) for i in range(8)]
    assert_all_right(path, bench.run_all(prompts, options=OPTIONS))


def test_again_with_a_warm_cache(path: Path, bench: Bench) -> None:
    cold = bench.run(SYSTEM * 3, options=OPTIONS)
    bench.run("something else in between " * 9, options=OPTIONS)
    warm = bench.run(SYSTEM * 3, options=OPTIONS)
    assert warm.cached == len(cold.prepared.prompt) - 1
    assert_all_right(path, [cold, warm])


def test_a_second_turn(path: Path, bench: Bench) -> None:
    first = bench.run(SYSTEM * 3, options=OPTIONS)
    context = first.prepared.prompt + first.tokens
    second = bench.run("go on: ", context=context, raw=True, options=OPTIONS)
    assert second.cached >= len(first.prepared.prompt)
    assert_all_right(path, [first, second])


def test_a_shared_beginning(path: Path, bench: Bench) -> None:
    before = bench.engine.computed
    runs = bench.run_all([SYSTEM * 4 + letter for letter in "abcdef"], options=OPTIONS)
    shared = len(bench.engine.vocabulary.tokenize(SYSTEM * 4))
    assert bench.engine.computed - before < 2 * shared + 6 * (24 + 8)
    assert_all_right(path, runs)


def test_moved_out_of_gaps(path: Path, bench: Bench) -> None:
    runs = [bench.start(SYSTEM + letter, options=OPTIONS) for letter in "abcd"]
    for _ in range(4):
        bench.step()
    bench.cancel(runs[1])
    bench.finish()
    assert_all_right(path, [runs[0], runs[2], runs[3]])


def test_more_conversations_than_slots_in_turns(path: Path, bench: Bench) -> None:
    for _ in range(2):
        runs = [bench.run(f"{letter} " + SYSTEM * 2, options=OPTIONS) for letter in "abcdefg"]
        assert_all_right(path, runs)
    assert all(run.cached == len(run.prepared.prompt) - 1 for run in runs)


@pytest.mark.parametrize("cache_type", [CacheType.Q8_0, CacheType.Q4_0])
def test_with_a_small_cache(cache_type: CacheType) -> None:
    bench = Bench(DEMO, cache_type=cache_type)
    question = [ChatMessage("user", "What is the capital of Japan?")]
    for _ in range(2):
        run = bench.start("", kind=Kind.CHAT, messages=question, raw=False)
        bench.finish()
        assert "Tokyo" in run.text
    bench.close()


# --- numbers that are none


def test_numbers_that_are_none_end_one_request_and_leave_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "poisoned.gguf"
    write_reciting_model(path, ["abcdefghij", "xyx"], poison="!")
    bench = Bench(path, slots=3)
    others = [bench.start("x", options={"temperature": 0, "num_predict": 60}) for _ in range(2)]
    bench.step()
    poisoned = bench.start("tell me a secret now! " * 12)
    bench.finish()
    assert poisoned.failure is not None
    assert [run.text for run in others] == ["yx" * 30] * 2
    for _ in range(4):
        assert [run.text for run in bench.run_all(["a", "c", "e"])] == [
            "bcdefghij",
            "defghij",
            "fghij",
        ]
    assert bench.run("tell me a secret now! ").failure is not None, "nothing poisoned was kept"
    assert bench.run("tell me a secret now").failure is None
    bench.close()
