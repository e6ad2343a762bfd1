"""The parts of the business layer that need no other process."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pronk.frontend.operations.generation import resolve_seed
from pronk.frontend.operations.policy import require_capabilities
from pronk.frontend.operations.prefix import prefix_chain
from pronk.frontend.operations.prompts import (
    TOKENS_PER_IMAGE,
    USUAL_ANSWER,
    estimate_cost,
    prompt_parts,
)
from pronk.frontend.operations.request import GenerationRequest
from pronk.protocol.errors import PronkError
from pronk.protocol.messages.generation import ChatMessage, Kind, SamplingOptions, ToolCall
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


# --- parts of a prompt

PLAIN = GenerationRequest(
    "demo", Kind.CHAT, SamplingOptions(), (ChatMessage("user", "a"), ChatMessage("assistant", "b"))
)


def shared(one: GenerationRequest, other: GenerationRequest) -> int:
    """Parts that two requests begin with alike."""
    chains = zip(prompt_parts(one), prompt_parts(other), strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], chains)))


def test_a_plain_conversation_has_a_part_for_each_message() -> None:
    assert prompt_parts(PLAIN) == [("user", b"a"), ("assistant", b"b")]


@pytest.mark.parametrize(
    "change",
    [
        {"thinking": "hm"},
        {"tool_calls": [ToolCall("f", {"a": 1})]},
        {"tool_calls": [ToolCall("f", {"a": 2})]},
        {"tool_calls": [ToolCall("f", {"a": 1}, "c1")]},
        {"tool_name": "f"},
        {"tool_call_id": "f"},
        {"images": [b"x"]},
        {"images": [b"x", b"x"]},
    ],
)
def test_whatever_a_message_has_is_in_its_part(change: dict[str, Any]) -> None:
    first, second = PLAIN.messages
    changed = replace(PLAIN, messages=(first, replace(second, **change)))
    assert shared(PLAIN, changed) == 1
    assert shared(changed, replace(changed)) == 2


def test_tools_come_first_and_a_wish_to_think_parts_no_prompts() -> None:
    tools = replace(PLAIN, tools=({"function": {"name": "f"}},))
    assert prompt_parts(tools)[0][0] == "tools"
    assert shared(PLAIN, tools) == 0
    assert shared(tools, replace(tools, think=True)) == 3
    assert shared(tools, replace(tools, think="high")) == 1
    prompt = replace(PLAIN, messages=(), prompt="a", images=(b"x",))
    assert [role for role, _ in prompt_parts(prompt)] == ["images", "user"]


def test_what_a_request_costs_counts_tools_and_images() -> None:
    def cost(**changes: Any) -> int:
        request = replace(PLAIN, **changes)
        return estimate_cost(request, prompt_parts(request))

    assert cost() == 2 + USUAL_ANSWER
    assert cost(options=SamplingOptions(num_predict=5)) == 7
    tool = {"function": {"name": "f", "description": "x" * 4_000}}
    assert 1_000 <= cost(tools=(tool,)) - cost() <= 1_050
    shown = replace(PLAIN.messages[0], images=[b"x", b"y"])
    assert cost(messages=(shown, PLAIN.messages[1])) - cost() >= 2 * TOKENS_PER_IMAGE
    assert cost(images=(b"x" * 100_000,)) - cost() < 2 * TOKENS_PER_IMAGE
