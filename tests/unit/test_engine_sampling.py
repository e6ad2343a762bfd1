"""Sampling settings become what llama.cpp can take, and draws depend on seed and position only."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from pronk.protocol.messages.generation import SamplingOptions
from pronk.workers.inference.sampling import SamplingPlan, draw_seed, plan_sampling

numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
integers = st.none() | st.integers(-(2**63), 2**63)
options = st.builds(
    SamplingOptions,
    temperature=numbers,
    top_k=integers,
    top_p=numbers,
    min_p=numbers,
    typical_p=numbers,
    repeat_last_n=st.none() | st.integers(-1, 2**63),
    repeat_penalty=numbers,
    presence_penalty=numbers,
    frequency_penalty=numbers,
)


def test_without_options_it_samples_as_ollama_does() -> None:
    plan = plan_sampling(SamplingOptions(), 4096)
    assert plan == SamplingPlan(0.8, 40, 0.9, 0.0, 1.0, 64, 1.0, 0.0, 0.0)
    assert not plan.greedy
    assert not plan.penalizes


@given(options, st.integers(1, 2**24))
def test_every_plan_is_within_what_llama_cpp_defines(given_: SamplingOptions, length: int) -> None:
    plan = plan_sampling(given_, length)
    assert plan.temperature == 0 or 1e-3 <= plan.temperature <= 1e6
    assert 0 <= plan.top_k < 2**31
    assert all(0 <= p <= 1 for p in (plan.top_p, plan.min_p, plan.typical_p))
    assert 0 <= plan.repeat_last_n <= length
    assert 0 < plan.repeat_penalty < math.inf
    assert abs(plan.presence_penalty) <= 100
    assert abs(plan.frequency_penalty) <= 100


def test_edges_mean_what_they_mean_to_ollamas_users() -> None:
    def plan(**given_: float) -> SamplingPlan:
        return plan_sampling(SamplingOptions(**given_), 512)  # type: ignore[arg-type]

    assert plan(temperature=0).greedy
    assert plan(temperature=-1).greedy
    assert plan(top_k=-1).top_k == 0
    assert plan(repeat_last_n=-1, repeat_penalty=1.2).repeat_last_n == 512
    assert not plan(repeat_penalty=0).penalizes
    assert not plan(repeat_last_n=0, repeat_penalty=2).penalizes
    assert plan(frequency_penalty=0.5).penalizes


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**24))
def test_draws_are_reproducible_and_never_llama_cpps_random_seed(seed: int, position: int) -> None:
    drawn = draw_seed(seed, position)
    assert drawn == draw_seed(seed, position)
    assert 0 <= drawn < 2**32 - 1


def test_draws_differ_between_positions_and_seeds() -> None:
    assert len({draw_seed(7, position) for position in range(10_000)}) > 9_990
    assert len({draw_seed(seed, 0) for seed in range(10_000)}) > 9_990
