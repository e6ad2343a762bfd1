"""The parts of the business layer that need no other process."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pronk.frontend.operations.generation import resolve_seed
from pronk.frontend.operations.policy import require_capabilities
from pronk.frontend.operations.prefix import prefix_chain
from pronk.protocol.errors import PronkError
from pronk.protocol.messages.library import ModelResolved
from pronk.protocol.recent import LONGEST_CHAIN

PARTS = st.lists(st.tuples(st.sampled_from(["system", "user"]), st.binary(max_size=9)), max_size=5)


@settings(deadline=None)
@given(st.none() | st.integers(max_value=-1))
def test_a_seed_that_is_left_to_us_fits_the_wire(seed: int | None) -> None:
    assert 0 <= resolve_seed(seed) < 2**32


def test_a_seed_that_is_given_stays() -> None:
    assert resolve_seed(0) == 0
    assert resolve_seed(42) == 42
    assert resolve_seed(2**32 + 1) == 1


@settings(deadline=None)
@given(PARTS, PARTS, PARTS)
def test_chains_agree_exactly_as_far_as_prompts_do(
    common: list[tuple[str, bytes]],
    left: list[tuple[str, bytes]],
    right: list[tuple[str, bytes]],
) -> None:
    one, other = common + left, common + right
    chains = zip(prefix_chain("d", one), prefix_chain("d", other), strict=False)
    agreeing = sum(a == b for a, b in chains) - 1
    expected = 0
    while one[expected : expected + 1] and one[: expected + 1] == other[: expected + 1]:
        expected += 1
    assert agreeing == expected


def test_another_model_shares_no_hash_and_a_long_chat_has_a_bounded_chain() -> None:
    parts = [("user", b"x")] * 1000
    one, other = prefix_chain("d", parts), prefix_chain("e", parts)
    assert not set(one) & set(other)
    assert len(one) == LONGEST_CHAIN
    assert {len(link) for link in one} == {16}


def test_a_model_is_refused_for_what_it_lacks() -> None:
    model = ModelResolved("0" * 32, "demo:latest", "d" * 64, ["completion"])
    require_capabilities("demo", model, ["completion"])
    with pytest.raises(PronkError) as caught:
        require_capabilities("demo", model, ["completion", "tools", "vision"])
    assert caught.value.message == '"demo" does not support tools, vision'
