"""Choosing tokens: each option does what it says, and the quick way chooses what the long one does.

Logits are given as they are; the samplers are llama.cpp's own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.generation import LogitBias, SamplingOptions
from pronk.workers.inference.context import Context, ContextPlan
from pronk.workers.inference.llama import DecodeFailed, Model
from pronk.workers.inference.mirostat import Mirostat
from pronk.workers.inference.samplers import Sampler
from pronk.workers.inference.sampling import draw, plan_sampling
from support.models import write_reciting_model

SIZE = 6000
END = (SIZE - 1, SIZE - 2)


@dataclass
class Rows:
    """The outputs of a step, as arrays."""

    rows: Sequence[np.ndarray]

    def logits(self, row: int) -> np.ndarray:
        return self.rows[row]


@dataclass
class Numbers:
    """A vocabulary of numbers, large enough for the quick way."""

    size: int = SIZE
    end_tokens: Sequence[int] = END
    handle: Any = None

    def tokenize(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("models") / "reciter.gguf"
    write_reciting_model(path, ["abcd", "xyx"])
    model = Model(path)
    yield model
    model.close()


def row(seed: int = 0, *, size: int = SIZE, spread: float = 3.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, spread, size).astype(np.float32)


def sampler(seed: int = 7, vocabulary: Any = None, **options: Any) -> Sampler:
    plan = plan_sampling(SamplingOptions(**options), 512)
    return Sampler(plan, seed, vocabulary or Numbers())


def choices(
    logits: np.ndarray, count: int = 200, *, before: Sequence[int] = (), **options: Any
) -> Counter[int]:
    """What is chosen at `count` positions, each without memory of the others."""
    rows = Rows([logits])
    chosen: Counter[int] = Counter()
    for position in range(count):
        one = sampler(**options)
        one.see(before)
        chosen[one.sample(rows, 0, position)] += 1
        one.close()
    return chosen


def few(**logits: float) -> np.ndarray:
    """A row in which only the named tokens, such as `t5`, are possible."""
    values = np.full(SIZE, -np.inf, np.float32)
    for name, value in logits.items():
        values[int(name[1:])] = value
    return values


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        "top_k": st.sampled_from([1, 5, 40, 200]),
        "top_p": st.sampled_from([0.1, 0.9, 1.0]),
        "min_p": st.sampled_from([0.0, 0.1]),
        "typical_p": st.sampled_from([0.5, 1.0]),
        "repeat_penalty": st.sampled_from([1.0, 1.3, 5.0]),
        "presence_penalty": st.sampled_from([0.0, 2.0, 50.0]),
        "frequency_penalty": st.sampled_from([0.0, 1.0]),
        "xtc_probability": st.sampled_from([0.0, 0.5]),
        "dynatemp_range": st.sampled_from([0.0, 0.4]),
        "ignore_eos": st.booleans(),
        "logit_bias": st.lists(
            st.builds(
                LogitBias, st.integers(0, SIZE - 1), st.sampled_from([None, -3.0, 4.0, 12.0])
            ),
            max_size=4,
        ),
    },
)


@settings(deadline=None, max_examples=80)
@given(OPTIONS, st.integers(0, 1000), st.integers(0, 1000))
def test_looking_at_the_likeliest_chooses_what_looking_at_all_does(
    options: dict[str, Any], seed: int, position: int
) -> None:
    logits = row(seed)
    before = np.argsort(logits)[-60:].tolist()  # penalties hit the likeliest
    quick, long = sampler(seed, **options), sampler(seed, **options)
    long._reach = 0
    for one in (quick, long):
        one.see(before)
    rows = Rows([logits])
    for step in range(3):
        assert quick.sample(rows, 0, position + step) == long.sample(rows, 0, position + step)
    for one in (quick, long):
        one.close()


@settings(deadline=None, max_examples=30)
@given(OPTIONS, st.integers(0, 1000))
def test_what_is_masked_is_never_chosen(options: dict[str, Any], seed: int) -> None:
    logits = row(seed)
    allowed = np.random.default_rng(seed).integers(0, SIZE, 3)
    mask = np.ones(SIZE, np.bool_)
    mask[allowed] = False
    logits[mask] = -np.inf
    one = sampler(seed, **options)
    for position in range(5):
        assert one.sample(Rows([logits]), 0, position) in allowed
    one.close()


def test_the_row_that_was_asked_for_is_used() -> None:
    one = sampler(temperature=0)
    rows = Rows([few(t1=1.0), few(t2=1.0)])
    assert [one.sample(rows, index, 0) for index in (0, 1)] == [1, 2]


def test_draws_depend_on_seed_and_position_only() -> None:
    rows = Rows([row(spread=1.0)])
    one, other, third = sampler(1), sampler(1), sampler(2)
    whole = [one.sample(rows, 0, position) for position in range(50)]
    assert [other.sample(rows, 0, position) for position in range(25, 50)] == whole[25:]
    assert [third.sample(rows, 0, position) for position in range(50)] != whole


def test_tokens_come_as_often_as_they_are_likely() -> None:
    logits = few(t1=math.log(0.6), t2=math.log(0.3), t3=math.log(0.1))
    chosen = choices(logits, 3000, temperature=1.0, top_p=1.0)
    for token, share in ((1, 0.6), (2, 0.3), (3, 0.1)):
        assert abs(chosen[token] / 3000 - share) < 0.03


def test_top_k_top_p_min_p_and_typical_cut_the_unlikely() -> None:
    logits = few(t1=math.log(0.5), t2=math.log(0.3), t3=math.log(0.15), t4=math.log(0.05))
    plain = {"temperature": 1.0, "top_p": 1.0}
    assert set(choices(logits, **plain)) == {1, 2, 3, 4}
    assert set(choices(logits, **plain, top_k=2)) == {1, 2}
    assert set(choices(logits, temperature=1.0, top_p=0.7)) == {1, 2}
    assert set(choices(logits, **plain, min_p=0.25)) == {1, 2, 3}
    # The entropy is 1.14: tokens of about e^-1.14 = 0.32 are the typical ones.
    assert set(choices(logits, **plain, typical_p=0.25)) == {2}


def test_top_n_sigma_keeps_what_is_near_the_largest() -> None:
    logits = row()  # σ is 3
    logits[[1, 2, 3]] = 40.0, 38.5, 30.0
    chosen = choices(logits, temperature=5.0, top_k=0, top_p=1.0, top_n_sigma=1.0)
    assert set(chosen) == {1, 2}


def test_xtc_drops_the_likeliest_as_often_as_it_is_told() -> None:
    logits = few(t1=math.log(0.6), t2=math.log(0.4))
    always = choices(logits, temperature=1.0, top_p=1.0, xtc_probability=1.0, xtc_threshold=0.3)
    assert set(always) == {2}
    half = choices(logits, 1000, temperature=0.1, top_p=1.0, xtc_probability=0.5, xtc_threshold=0.3)
    assert 400 < half[2] < 600
    again = choices(
        logits, 1000, temperature=0.1, top_p=1.0, xtc_probability=0.5, xtc_threshold=0.3
    )
    assert half == again


def test_a_dynamic_temperature_is_low_where_the_model_is_sure() -> None:
    sure = few(t1=8.0, **{f"t{token}": 0.0 for token in range(2, 40)})
    plain = choices(sure, 300, temperature=2.0, top_p=1.0)
    dynamic = choices(sure, 300, temperature=2.0, dynatemp_range=1.9, top_p=1.0)
    assert plain[1] < 250
    assert dynamic[1] > 280


def test_penalties_make_what_was_there_less_likely() -> None:
    logits = few(t1=5.0, t2=4.0, t3=3.0)
    for penalty in ({"repeat_penalty": 2.0}, {"presence_penalty": 1.5}, {"frequency_penalty": 1.5}):
        assert set(choices(logits, 1, temperature=0, before=[1], **penalty)) == {2}
    # Twice there counts twice for the frequency only.
    assert set(choices(logits, 1, temperature=0, before=[2, 2], frequency_penalty=0.9)) == {1}
    counted = {"temperature": 0, "before": [1, 1]}
    assert set(choices(logits, 1, **counted, frequency_penalty=0.6)) == {2}
    assert set(choices(logits, 1, **counted, presence_penalty=0.6)) == {1}
    # As far as they look back, and what was chosen counts, too.
    assert set(
        choices(logits, 1, temperature=0, before=[1, 9], repeat_last_n=1, presence_penalty=9.0)
    ) == {1}
    one = sampler(temperature=0, presence_penalty=1.5)
    assert [one.sample(Rows([logits]), 0, position) for position in range(3)] == [1, 2, 1]


def test_negative_penalties_lift_what_was_there_from_below_top_k() -> None:
    logits = row()
    unlikely = int(logits.argmin())
    chosen = choices(logits, 5, before=[unlikely], presence_penalty=-60.0, top_k=2)
    assert set(chosen) == {unlikely}


def test_dry_breaks_a_repetition_and_respects_its_breakers(model: Model) -> None:
    vocabulary = model.vocabulary
    logits = np.zeros(vocabulary.size, np.float32)
    logits[ord("d")], logits[ord("e")] = 5.0, 4.0

    def next_after(text: str, **options: Any) -> str:
        one = sampler(vocabulary=vocabulary, temperature=0, dry_multiplier=3.0, **options)
        one.see(vocabulary.tokenize(text))
        token = one.sample(Rows([logits]), 0, 0)
        one.close()
        return chr(token)

    assert next_after("bcdzbc") == "e", "d would repeat bcd"
    assert next_after("bcdzbc", dry_allowed_length=3) == "d"
    assert next_after("bcdzbc", dry_penalty_last_n=3) == "d"
    assert next_after("bcdzbc", dry_sequence_breakers=["c"]) == "d"
    assert next_after("b:cdzb:c") == "d", "a colon ends what counts"
    assert next_after("b:cdzb:c", dry_sequence_breakers=[]) == "e"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("target", [2.0, 5.0])
def test_mirostat_keeps_the_surprise_near_its_target(version: int, target: float) -> None:
    mirostat = Mirostat(version, target, 0.1)
    logits = row(spread=2.0)
    surprises: list[float] = []
    chosen: set[int] = set()
    for position in range(600):
        allowed = mirostat.mu
        chosen.add(mirostat.choose(logits, draw(7, position)))
        surprises.append((allowed - mirostat.mu) / 0.1 + target)
    assert abs(np.mean(surprises[200:]) - target) < 0.3
    assert len(chosen) > 4
    assert all((logits > logits[token]).sum() < SIZE / 4 for token in chosen)


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_chooses_only_what_is_possible(version: int) -> None:
    one = sampler(mirostat=version, logit_bias=[LogitBias(5, None)])
    rows = Rows([few(t5=9.0, t6=1.0, t7=0.0), few(t5=1.0), few(t8=1.0)])
    assert {one.sample(rows, 0, position) for position in range(60)} == {6, 7}
    assert one.sample(rows, 1, 60) == 5, "what is allowed alone overrules a bias"
    assert one.sample(rows, 2, 61) == 8
    flat = Rows([np.zeros(SIZE, np.float32)])
    assert len({one.sample(flat, 0, position) for position in range(70, 90)}) > 10


def test_biases_forbid_favour_and_name_tokens_by_text() -> None:
    logits = row()
    best, second = np.argsort(logits)[[-1, -2]].tolist()
    worst = int(logits.argmin())

    def greedy(*biases: LogitBias) -> int:
        (token,) = choices(logits, 1, temperature=0, logit_bias=list(biases))
        return token

    assert greedy() == best
    assert greedy(LogitBias(best, None)) == second
    assert greedy(LogitBias(worst, 100.0)) == worst
    assert greedy(LogitBias(f"{worst} 17", 100.0)) in (worst, 17)
    assert greedy(LogitBias(best, 1e9), LogitBias(best, None)) == second
    assert set(choices(logits, 20, logit_bias=[LogitBias(worst, 100.0)], top_k=1)) == {worst}


def test_a_bias_for_a_token_that_is_not_there_is_refused() -> None:
    with pytest.raises(
        PronkError, match=r"options\.logit_bias.* no token 6000.* 0 to 5999"
    ) as caught:
        sampler(logit_bias=[LogitBias(SIZE, 1.0)])
    assert caught.value.code is Code.INVALID_REQUEST


def test_ignore_eos_forbids_every_end_unless_nothing_else_is_allowed() -> None:
    logits = row()
    logits[list(END)] = 50.0, 40.0
    assert set(choices(logits, 5)) == {END[0]}
    assert not set(choices(logits, 50, ignore_eos=True)) & set(END)
    assert set(choices(few(t5999=1.0), 5, ignore_eos=True)) == {END[0]}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0},
        {"mirostat": 2},
        {"repeat_penalty": 1.5},
        {"top_k": 0},
        {"ignore_eos": True},
    ],
)
def test_logits_that_are_no_numbers_fail(options: dict[str, Any], bad: float) -> None:
    logits = np.full(SIZE, bad, np.float32) if bad == -math.inf else row()
    logits[4321] = bad
    with pytest.raises(DecodeFailed, match="not finite"):
        sampler(**options).sample(Rows([logits]), 0, 0)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_options_choose_a_token(data: st.DataObject) -> None:
    whole = st.integers(-(2**63), 2**63 - 1)
    number = st.floats(allow_nan=False, allow_infinity=False)
    options = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                name: whole if name in ("top_k", "repeat_last_n", "mirostat") else number
                for name in (
                    *("temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma"),
                    *("xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent"),
                    *("mirostat", "mirostat_tau", "mirostat_eta", "repeat_last_n"),
                    *("repeat_penalty", "presence_penalty", "frequency_penalty"),
                )
            },
        )
    )
    if "mirostat" in options:
        options["mirostat"] %= 3
    one = sampler(data.draw(st.integers(0, 2**32 - 1)), **options)
    one.see(range(100))
    rows = Rows([row(spread=10.0), np.zeros(SIZE, np.float32), few(t3=1e30, t4=-1e30)])
    for position in range(6):
        assert 0 <= one.sample(rows, position % 3, position) < SIZE
    one.close()
    one.close()


def test_it_reads_a_context_of_llama_cpp(model: Model, tmp_path: Path) -> None:
    context = Context(model, ContextPlan(slots=1, length=64, threads=1, batch=32))
    try:
        context.decode([ord("a")], [0], [0], [0])
        for options in ({}, {"temperature": 0}, {"mirostat": 2}, {"repeat_penalty": 1.1}):
            one = sampler(vocabulary=model.vocabulary, **options)
            assert one.sample(context, 0, 0) == ord("b")
            one.close()
        barred = sampler(vocabulary=model.vocabulary, logit_bias=[LogitBias("b", None)])
        assert barred.sample(context, 0, 0) != ord("b")
        barred.close()
    finally:
        context.close()


def test_the_end_tokens_are_those_that_end_a_generation(model: Model) -> None:
    vocabulary = model.vocabulary
    assert vocabulary.size - 1 in vocabulary.end_tokens
    assert all(map(vocabulary.ends_generation, vocabulary.end_tokens))
