"""Sampling settings become what llama.cpp can take, and draws depend on seed and position only."""

from __future__ import annotations

import dataclasses
import math

from hypothesis import given
from hypothesis import strategies as st

from pronk.protocol.messages.generation import LogitBias, SamplingOptions
from pronk.workers.inference.sampling import SamplingPlan, draw, plan_sampling

numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
integers = st.none() | st.integers(-(2**63), 2**63)
look_backs = st.none() | st.integers(-1, 2**63)
KINDS = {
    "top_k": integers,
    "mirostat": integers,
    "dry_allowed_length": integers,
    "num_predict": integers,
    "repeat_last_n": look_backs,
    "dry_penalty_last_n": look_backs,
    "num_keep": look_backs,
    "dry_sequence_breakers": st.none() | st.lists(st.text()),
    "stop": st.none() | st.lists(st.text()),
    "logit_bias": st.none() | st.lists(st.builds(LogitBias, st.integers(0, 9), numbers)),
    "ignore_eos": st.none() | st.booleans(),
}
options = st.builds(
    SamplingOptions,
    **{field.name: KINDS.get(field.name, numbers) for field in dataclasses.fields(SamplingOptions)},
)


def plan(**given_: object) -> SamplingPlan:
    return plan_sampling(SamplingOptions(**given_), 512)  # type: ignore[arg-type]


def test_without_options_it_samples_as_ollama_does() -> None:
    default = plan_sampling(SamplingOptions(), 4096)
    assert default == SamplingPlan(
        0.8, 40, 0.9, 0.0, 1.0, 64, 1.0, 0.0, 0.0, dry_penalty_last_n=4096
    )
    assert not default.greedy
    assert not default.penalizes
    assert not default.dries
    assert default.looks_back == 0


@given(options, st.integers(1, 2**24))
def test_every_plan_is_within_what_llama_cpp_defines(given_: SamplingOptions, length: int) -> None:
    plan = plan_sampling(given_, length)
    assert plan.temperature == 0 or 1e-3 <= plan.temperature <= 1e6
    assert 0 <= plan.top_k < 2**31
    fractions = (plan.top_p, plan.min_p, plan.typical_p, plan.xtc_probability, plan.xtc_threshold)
    assert all(0 <= p <= 1 for p in fractions)
    assert 0 <= plan.repeat_last_n <= length
    assert 0 <= plan.dry_penalty_last_n <= length
    assert 0 <= plan.looks_back <= length
    assert 0 < plan.repeat_penalty < math.inf
    assert abs(plan.presence_penalty) <= 100
    assert abs(plan.frequency_penalty) <= 100
    assert plan.mirostat in (0, 1, 2)
    assert 0 <= plan.dry_allowed_length < 2**31
    assert all(entry.bias is None or abs(entry.bias) <= 1e4 for entry in plan.logit_bias)


def test_edges_mean_what_they_mean_to_ollamas_users() -> None:
    assert plan(temperature=0).greedy
    assert plan(temperature=-1).greedy
    assert not plan(temperature=0, dynatemp_range=0.5).greedy
    assert plan(top_k=-1).top_k == 0
    assert plan(repeat_last_n=-1, repeat_penalty=1.2).repeat_last_n == 512
    assert not plan(repeat_penalty=0).penalizes
    assert not plan(repeat_last_n=0, repeat_penalty=2).penalizes
    assert plan(frequency_penalty=0.5).penalizes
    assert plan(top_n_sigma=-1.0).top_n_sigma == 0
    assert plan(dry_multiplier=0.8).dries
    assert plan(dry_multiplier=0.8).looks_back == 512
    assert not plan(dry_multiplier=0.8, dry_penalty_last_n=0).dries
    assert not plan(dry_multiplier=0.8, dry_base=0.5).dries


def test_only_penalties_that_reward_favour_a_token() -> None:
    for off in ({}, {"repeat_penalty": 1.5}, {"presence_penalty": 1.0}):
        assert not plan(**off).favours
    for on in ({"repeat_penalty": 0.9}, {"presence_penalty": -1}, {"frequency_penalty": -0.1}):
        assert plan(**on).favours


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**24), st.integers(0, 3))
def test_draws_are_reproducible_fractions(seed: int, position: int, purpose: int) -> None:
    drawn = draw(seed, position, purpose=purpose)
    assert drawn == draw(seed, position, purpose=purpose)
    assert 0 <= drawn < 1


def test_draws_are_spread_evenly_and_differ_between_positions_seeds_and_purposes() -> None:
    for draws in (
        [draw(7, position) for position in range(10_000)],
        [draw(seed, 0) for seed in range(10_000)],
        [draw(7, position, purpose=1) for position in range(10_000)],
    ):
        assert len(set(draws)) == 10_000
        shares = [sum(tenth / 10 <= d < (tenth + 1) / 10 for d in draws) for tenth in range(10)]
        assert all(850 < share < 1150 for share in shares)
    assert draw(7, 5) != draw(7, 5, purpose=1)
