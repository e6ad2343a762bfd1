"""What is batched, reused and moved gives right texts all the same, with every kind of model.

See `support.right_text` for what a right text is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pronk.protocol.messages.generation import ChatMessage, Kind
from pronk.protocol.messages.placement import CacheType, FlashAttention
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


def test_prompts_of_nearly_the_same_length(path: Path, bench: Bench) -> None:
    prompts = [f"{letter} asked before you" + "." * i for i, letter in enumerate("abcd")]
    rows = 0
    decode = bench.engine.context.decode

    def counted(tokens: list[int], *rest: list[int]) -> None:
        nonlocal rows
        rows += len(tokens)
        decode(tokens, *rest)

    bench.engine.context.decode = counted
    runs = bench.run_all(prompts, options=OPTIONS)
    padded = rows - bench.engine.computed
    assert padded > 0 if bench.engine.context.can_cut else padded == 0
    again = bench.run_all([prompt + " again" for prompt in prompts], options=OPTIONS)
    assert_all_right(path, [*runs, *again])


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


def test_shifted_and_moved_in_the_same_step() -> None:
    options = {"temperature": 0, "ignore_eos": True, "num_predict": 120}
    texts: list[str] = []
    for leaves_after in (34, 35, 36, 37, 38, None):
        bench = Bench(DEMO, slots=3)
        runs = [bench.start("Count to 100.", options=options, context_length=64) for _ in range(3)]
        while bench.engine.busy:
            if bench.steps == leaves_after:
                bench.cancel(runs[1])
            bench.step()
        texts += [runs[0].text, runs[2].text]
        bench.close()
    assert len(set(texts)) == 1


# --- numbers that are none


@pytest.fixture(params=FlashAttention)
def poisonous(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """A model for which one letter is poison: without flash attention a mask does not hold NaN."""
    path = tmp_path / "poisoned.gguf"
    write_reciting_model(path, ["abcdefghij", "xyx"], poison="!")
    bench = Bench(path, slots=3, flash_attention=request.param)
    yield bench
    bench.close()


def assert_clean(bench: Bench) -> None:
    for _ in range(4):
        texts = [run.text for run in bench.run_all(["a", "c", "e"])]
        assert texts == ["bcdefghij", "defghij", "fghij"]


def test_numbers_that_are_none_end_one_request_and_leave_nothing_behind(poisonous: Bench) -> None:
    bench = poisonous
    others = [bench.start("x", options={"temperature": 0, "num_predict": 60}) for _ in range(2)]
    bench.step()
    poisoned = bench.start("tell me a secret now! " * 12)
    bench.finish()
    assert poisoned.failure is not None
    assert [run.text for run in others] == ["yx" * 30] * 2
    assert_clean(bench)
    assert bench.run("tell me a secret now! ").failure is not None
    assert bench.run("tell me a secret now").failure is None


def test_two_at_once_do_not_clean_each_other(poisonous: Bench) -> None:
    bench = poisonous
    other = bench.start("x", options={"temperature": 0, "num_predict": 60})
    poisoned = bench.start("first!"), bench.start("second!")
    bench.finish()
    assert all(run.failure for run in poisoned)
    assert other.text == "yx" * 30
    assert_clean(bench)


def test_who_leaves_before_it_fails_does_not_harm_the_next_one(poisonous: Bench) -> None:
    bench = poisonous
    other = bench.start("x", options={"temperature": 0, "num_predict": 200})
    bench.step()
    reading = bench.start("poison! " * 60)
    bench.step()
    assert not reading.left
    bench.cancel(reading)
    assert_clean(bench)
    assert other.text == "yx" * 100


def test_who_fails_leaves_nothing_of_another_in_its_slot() -> None:
    """A prompt that is known is put where a request has just failed."""
    bench = Bench(DEMO, slots=2)
    known = bench.run(SYSTEM * 3, options=OPTIONS)
    bench.run_all(["one " * 60, "two " * 60], options=OPTIONS)  # it is kept beyond the slots now
    beside = bench.start("three " * 40, options={"temperature": 0, "num_predict": 200})
    bench.step()
    failing = bench.start("four")
    failing.prepared.sequence.tokens[0] = 10**6  # no such token: llama.cpp refuses the batch
    while not failing.left:
        bench.step()
    again = bench.start(SYSTEM * 3, options=OPTIONS)
    bench.finish()
    assert again.cached == len(known.prepared.prompt) - 1
    assert_all_right(DEMO, [known, again, beside])
    bench.close()
