"""Answers that are led, in the engine: many at a time, cut off, and continued."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pronk.protocol.messages.generation import Constraint, Grammar, ToolChoice
from pronk.workers.conversation.formats.said import Call, Content, Thinking
from pronk.workers.inference.constraints import ConstraintCompiler
from pronk.workers.inference.guiding.maker import GuideMaker, Wish
from support.engines import Bench, Run
from support.guided import FORMATS, REQUIRED, TOOLS, calls_in, parse, write_model


class LedBench(Bench):
    """A bench whose answers are led."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, slots=8, length=2048)
        vocabulary = self.model.vocabulary
        self.maker = GuideMaker(vocabulary, ConstraintCompiler(vocabulary))

    def lead(
        self, name: str, wish: Wish, *, opened: bool = False, seed: int = 1, **changes: Any
    ) -> Run:
        options = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "num_predict": 400}
        options |= changes.pop("options", {})
        run = self.start("Say it.", seed=seed, options=options, **changes)
        guide = self.maker.make(FORMATS[name], wish, opened=opened)
        assert guide is not None
        for token in changes.get("tokens", ()):
            guide.accept(token)
        run.prepared.sequence.form = guide
        return run

    def said(self, run: Run) -> str:
        """What a parser is given."""
        vocabulary = self.model.vocabulary
        tokens = run.prepared.answer.tokens
        pieces = [vocabulary.written(t) for t in tokens if not vocabulary.ends_generation(t)]
        return b"".join(pieces).decode("utf-8", "replace")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedBench]:
    path = tmp_path_factory.mktemp("models") / "random.gguf"
    write_model(path)
    bench = LedBench(path)
    yield bench
    bench.close()


NOW = Wish(TOOLS[1:], ToolChoice.REQUIRED, think=False)
"""A call that is short, whatever a random model does."""


def test_a_model_of_random_weights_calls_as_it_must_with_many_in_one_batch(bench: LedBench) -> None:
    names = [name for name in FORMATS if name != "harmony"]
    runs = [(name, bench.lead(name, NOW, seed=seed)) for seed in range(2) for name in names]
    free = bench.start("Say it.", options={"num_predict": 50})
    bench.finish()
    for name, run in runs:
        assert run.failure is None
        said = parse(name, bench.said(run))
        assert isinstance(said[0], Call), bench.said(run)
        assert (said[0].name, said[0].arguments) == ("now", {})
    assert len(free.tokens) == 50


def test_arguments_have_their_schemas(bench: LedBench) -> None:
    runs = [bench.lead("listed", REQUIRED, seed=seed) for seed in range(10)]
    bench.finish()
    read = 0
    for run in runs:
        text = bench.said(run)
        if run.reason == "length" and "}]" not in text:
            continue  # a text that a random model never ends
        for call in calls_in(parse("listed", text)):
            read += 1
            assert call.name in ("weather", "now")
            if call.name == "weather":
                assert call.arguments["unit"] in ("c", "f")
    assert read >= 5


@pytest.mark.parametrize("name", ["marked", "tagged", "python", "named"])
def test_a_stream_that_broke_off_within_a_call_goes_on(bench: LedBench, name: str) -> None:
    options = {"temperature": 0, "num_predict": 200}
    whole = bench.lead(name, NOW, options=options)
    bench.finish()
    runs = [
        bench.lead(name, NOW, options=options, tokens=whole.tokens[:cut]) for cut in range(1, 20)
    ]
    bench.finish()
    for run in runs:
        said = parse(name, bench.said(run))
        assert isinstance(said[0], Call)
        assert said[0].name == "now"


def test_budgets_hold_beside_others(bench: LedBench) -> None:
    budgets = [0, 1, 7, 30, 90]
    options = {"num_predict": 150, "ignore_eos": True}
    runs = [
        bench.lead("marked", Wish(budget=each), opened=True, seed=each, options=options)
        for each in budgets
    ]
    bench.finish()
    closing = bench.model.vocabulary.tokenize("</think>")
    for budget, run in zip(budgets, runs, strict=True):
        at = run.tokens.index(closing[0])
        assert at <= budget + 4  # a character is not cut
        said = parse("marked", bench.said(run), opened=True)
        assert isinstance(said[-1], Content)
        assert len([part for part in said if isinstance(part, Thinking)]) <= 1


def test_a_budget_counts_what_an_earlier_attempt_thought(bench: LedBench) -> None:
    wish = Wish(budget=20)
    options = {"temperature": 0, "num_predict": 200}
    whole = bench.lead("marked", wish, opened=True, options=options)
    bench.finish()
    closing = bench.model.vocabulary.tokenize("</think>")[0]
    expected = whole.tokens.index(closing)
    for cut in (1, 10, expected, expected + 1, expected + 5):
        run = bench.lead("marked", wish, opened=True, options=options, tokens=whole.tokens[:cut])
        bench.finish()
        assert abs(run.prepared.answer.tokens.index(closing) - expected) <= 4


def test_the_end_of_reasoning_has_log_probabilities_too(bench: LedBench) -> None:
    run = bench.lead("marked", Wish(budget=3), opened=True, logprobs=2, options={"num_predict": 12})
    bench.finish()
    assert len(run.logprobs) == len(run.tokens)
    assert all(told is not None and told.chosen.logprob <= 0 for told in run.logprobs)


def test_a_form_comes_behind_reasoning(bench: LedBench) -> None:
    constraint = Constraint(Grammar.REGEX, "(yes|no)")
    wish = Wish(constraint=constraint, budget=10)
    runs = [bench.lead("marked", wish, opened=True, seed=seed) for seed in range(6)]
    bench.finish()
    for run in runs:
        assert run.reason == "stop"
        said = parse("marked", bench.said(run), opened=True)
        assert isinstance(said[-1], Content)
        assert said[-1].text in ("yes", "no")


def test_penalties_know_of_the_tokens_that_ended_reasoning(bench: LedBench) -> None:
    options = {"repeat_penalty": 1.3, "num_predict": 30}
    run = bench.lead("marked", Wish(budget=4), opened=True, options=options)
    bench.finish()
    assert run.failure is None
    assert len(run.tokens) == 30
