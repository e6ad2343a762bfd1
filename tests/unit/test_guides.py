"""How answers are led through reasoning, calls and forms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.generation import Constraint, Grammar, ToolChoice
from pronk.workers.conversation.formats.description import Format
from pronk.workers.conversation.formats.said import Call, Content, Thinking
from pronk.workers.inference.constraints import Matcher
from pronk.workers.inference.guiding.guide import Guide
from pronk.workers.inference.guiding.maker import Wish
from support.guided import (
    FORMATS,
    REQUIRED,
    TOOLS,
    Led,
    calls_in,
    parse,
    thought_in,
    tool,
    write_model,
)

JSON = Constraint(
    Grammar.JSON_SCHEMA,
    '{"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": false}',
)
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def led(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Led]:
    path = tmp_path_factory.mktemp("models") / "random.gguf"
    write_model(path)
    led = Led.open(path)
    yield led
    led.model.close()


def feed(led: Led, guide: Guide, text: str) -> None:
    for token in led.tokens(text):
        guide.accept(token)


def drain(led: Led, guide: Guide) -> str:
    """What is put into the model's mouth here."""
    tokens: list[int] = []
    while guide.forced is not None:
        tokens.append(guide.forced)
        guide.accept(guide.forced)
    return led.text(tokens)


# --- nothing to do


def test_a_request_without_wishes_is_not_led(led: Led) -> None:
    for form in (*FORMATS.values(), Format()):
        assert led.maker.make(form, Wish(), opened=False) is None


def test_a_form_alone_binds_from_the_first_token(led: Led) -> None:
    for form in (FORMATS["marked"], FORMATS["bare"], Format()):
        assert isinstance(led.maker.make(form, Wish(constraint=JSON), opened=False), Matcher)


def test_a_model_that_does_not_reason_has_no_budget(led: Led) -> None:
    wish = Wish(think=False, budget=0)
    assert led.maker.make(FORMATS["listed"], wish, opened=False) is None


# --- wishes that cannot be fulfilled


@pytest.mark.parametrize(
    ("form", "wish", "words"),
    [
        (FORMATS["marked"], Wish(TOOLS, ToolChoice.NAMED, "there"), "'there'"),
        (FORMATS["marked"], Wish((), ToolChoice.REQUIRED), "there are no tools"),
        (Format(), Wish(TOOLS, ToolChoice.REQUIRED), "does not call tools"),
        (FORMATS["marked"], Wish([{"type": "function"}]), "name"),
        (FORMATS["marked"], Wish([tool(" ", None)]), "name"),
        (FORMATS["python"], Wish([tool("no name", None)], ToolChoice.REQUIRED), "no way"),
        (FORMATS["marked"], Wish(TOOLS, constraint=Constraint(Grammar.REGEX, "(")), "format"),
    ],
)
def test_what_cannot_be_is_refused(led: Led, form: Format, wish: Wish, words: str) -> None:
    with pytest.raises(PronkError, match=words) as caught:
        led.maker.make(form, wish, opened=False)
    assert caught.value.code is Code.INVALID_REQUEST


# --- reasoning


@pytest.mark.parametrize("budget", [0, 1, 5, 40])
def test_reasoning_ends_when_it_has_used_up_its_budget(led: Led, budget: int) -> None:
    guide = led.guide("marked", Wish(budget=budget), opened=True)
    for _ in range(budget):
        assert guide.forced is None
        guide.accept(led.tokens("x")[0])
    assert drain(led, guide) == "</think>"
    assert guide.forced is None
    assert b"<think>" in led.forbidden(guide)
    feed(led, guide, "So be it, </think> and so on.")
    assert guide.forced is None


def test_reasoning_that_ends_by_itself_is_left_alone(led: Led) -> None:
    guide = led.guide("marked", Wish(budget=5), opened=True)
    feed(led, guide, "x</think>\n\nThe answer is long, longer than the budget.")
    assert guide.forced is None


def test_reasoning_that_the_model_began_is_counted(led: Led) -> None:
    guide = led.guide("marked", Wish(budget=3), opened=False)
    feed(led, guide, "<think>xxx")
    assert drain(led, guide) == "</think>"


def test_a_character_is_not_cut_by_the_budget(led: Led) -> None:
    guide = led.guide("marked", Wish(budget=1), opened=True)
    *start, last = led.maker._table(FORMATS["marked"]).spell("漢".encode()) or []
    for token in start:
        guide.accept(token)
        assert guide.forced is None
    guide.accept(last)
    assert drain(led, guide) == "</think>"


def test_messages_on_channels_have_a_budget(led: Led) -> None:
    guide = led.guide("harmony", Wish(think=True, budget=2), opened=False)
    feed(led, guide, "<|channel|>analysis<|message|>xx")
    assert drain(led, guide) == "<|end|><|start|>assistant<|channel|>final<|message|>"
    feed(led, guide, "It is so.")
    assert guide.forced is None


def test_with_tools_the_budget_leaves_open_what_comes_behind(led: Led) -> None:
    guide = led.guide("harmony", Wish(TOOLS, budget=2), opened=False)
    feed(led, guide, "<|channel|>analysis<|message|>xx")
    assert drain(led, guide) == "<|end|>"
    feed(led, guide, "<|start|>assistant<|channel|>commentary to=functions.")
    assert guide.masks


def test_reasoning_that_is_not_wanted_cannot_begin(led: Led) -> None:
    guide = led.guide("marked", Wish(think=False), opened=False)
    assert led.forbidden(guide) == {b"<think>"}
    feed(led, guide, "\n")
    assert b"<think>" in led.forbidden(guide)
    feed(led, guide, "Well ")
    assert not led.forbidden(guide)


def test_a_marker_of_reasoning_in_ordinary_tokens_cannot_be_completed(led: Led) -> None:
    guide = led.guide("marked", Wish(think=False), opened=False)
    for token in led.maker._table(FORMATS["marked"]).spell(b"<think") or []:
        guide.accept(token)
    assert b">" in led.forbidden(guide)


def test_reasoning_that_the_prompt_began_is_ended_at_once_where_it_is_not_wanted(led: Led) -> None:
    guide = led.guide("marked", Wish(think=False), opened=True)
    assert drain(led, guide) == "</think>"


# --- what has to come


@pytest.mark.parametrize("name", ["marked", "named", "tagged", "harmony"])
def test_an_answer_that_must_call_may_reason_first(led: Led, name: str) -> None:
    reasoned = 0
    for seed in range(12):
        wish = Wish(TOOLS, ToolChoice.REQUIRED, think=True, budget=20)
        said = parse(name, led.text(led.walk(led.guide(name, wish), seed)))
        reasoned += isinstance(said[0], Thinking)
        first = next(part for part in said if not isinstance(part, Thinking))
        assert isinstance(first, Call)
    assert reasoned


def test_where_nothing_was_said_of_reasoning_a_call_that_has_to_come_may_wait_for_it(
    led: Led,
) -> None:
    for think, may in ((None, True), (True, True), (False, False)):
        guide = led.guide("marked", Wish(TOOLS, ToolChoice.REQUIRED, think=think))
        assert (b"<think>" not in led.forbidden(guide)) is may
        assert b"<tool_call>" not in led.forbidden(guide)


def test_a_call_that_has_to_come_comes_behind_reasoning_that_the_prompt_began(led: Led) -> None:
    wish = Wish(TOOLS, ToolChoice.REQUIRED, budget=9)
    guide = led.guide("marked", wish, opened=True)
    text = led.text(led.walk(guide, 1))
    said = parse("marked", text, opened=True)
    assert len(calls_in(said)) >= 1
    assert not [part for part in said[:2] if isinstance(part, Content)]


@pytest.mark.parametrize("name", ["marked", "harmony"])
def test_a_form_binds_what_comes_behind_reasoning(led: Led, name: str) -> None:
    for seed in range(6):
        opened = name == "marked"
        guide = led.guide(name, Wish(constraint=JSON, think=True, budget=30), opened=opened)
        said = parse(name, led.text(led.walk(guide, seed)), opened=opened)
        last = said[-1]
        assert isinstance(last, Content)
        assert isinstance(json.loads(last.text), dict)
        assert len(said) <= 2


def test_white_space_may_stand_before_a_form(led: Led) -> None:
    guide = led.guide("marked", Wish(constraint=JSON), opened=True)
    feed(led, guide, "so</think>\n\n")
    assert b"{" not in led.forbidden(guide)
    assert b"x" in led.forbidden(guide)
    feed(led, guide, '{"a": true')
    assert b"}" not in led.forbidden(guide)


def test_an_answer_does_not_end_within_reasoning_where_something_has_to_come(led: Led) -> None:
    guide = led.guide("marked", Wish(constraint=JSON), opened=True)
    assert {led.pieces[token] for token in led.ends} <= led.forbidden(guide)


@pytest.mark.parametrize(
    ("name", "begins", "kind"),
    [
        ("marked", "{", Content),
        ("marked", "<tool_call>", Call),
        ("bare", '{"name"', Call),
        ("bare", '{"a"', Content),
        ("harmony", "<|channel|>final", Content),
        ("harmony", "<|channel|>commentary", Call),
    ],
)
def test_with_tools_an_answer_is_a_call_or_has_the_form(
    led: Led, name: str, begins: str, kind: type
) -> None:
    for seed in range(8):
        guide = led.guide(name, Wish(TOOLS, constraint=JSON))
        said = parse(name, led.text(led.walk(guide, seed, led.tokens(begins))))
        assert isinstance(said[0], kind)
        for part in said:
            if isinstance(part, Content):
                assert isinstance(json.loads(part.text), dict)


# --- going on elsewhere


@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_goes_on_elsewhere_as_it_would_have_here(led: Led, name: str) -> None:
    wish = Wish(TOOLS, ToolChoice.REQUIRED, think=True, budget=4)
    here = led.guide(name, wish)
    tokens = led.walk(led.guide(name, wish), 5)
    for count, token in enumerate(tokens):
        if count % 3 == 0:
            there = led.guide(name, wish)
            for earlier in tokens[:count]:
                there.accept(earlier)
            assert there.forced == here.forced
            if here.forced is None:
                assert led.forbidden(there) == led.forbidden(here)
        here.accept(token)


def test_a_guide_is_made_once_for_the_same_tools(led: Led) -> None:
    assert led.guide("marked", REQUIRED)._plan is led.guide("marked", REQUIRED)._plan
    assert led.guide("marked", REQUIRED)._plan is not led.guide("marked")._plan


def test_thoughts_are_counted_as_they_are_told(led: Led) -> None:
    text = led.text(led.walk(led.guide("marked", Wish(think=True, budget=10)), 3))
    assert thought_in(parse("marked", text)) in text


# --- what the end of the prompt tells


def test_the_end_of_the_prompt_tells_whether_reasoning_has_begun(led: Led) -> None:
    form = FORMATS["marked"]
    guide = led.maker.behind("Why?\n<think>\n", form, Wish(budget=0))
    assert isinstance(guide, Guide)
    assert drain(led, guide) == "</think>"
    guide = led.maker.behind("Why?\n", form, Wish(budget=0))
    assert isinstance(guide, Guide)
    assert guide.forced is None


def test_a_marker_that_the_prompt_began_is_gone_on_with(led: Led) -> None:
    form = replace(FORMATS["nested"], lead="<ca")
    for prompt, text in (("Say: <ca", "ll>"), ("Say:", "<call>")):
        guide = led.maker.behind(prompt, form, Wish(TOOLS))
        assert isinstance(guide, Guide)
        feed(led, guide, text)
        assert guide.masks
    guide = led.maker.behind("Say: <ca", form, REQUIRED)
    assert isinstance(guide, Guide)
    assert "<ca" + led.text(led.walk(guide, 1)).partition(">")[0] == "<call"


def test_on_channels_a_form_binds_the_last_one_only(led: Led) -> None:
    guide = led.maker.behind("<|start|>assistant", FORMATS["harmony"], Wish(constraint=JSON))
    assert isinstance(guide, Guide)
    feed(led, guide, "<|channel|>analysis<|message|>Let me see.<|end|>")
    feed(led, guide, "<|start|>assistant<|channel|>final<|message|>")
    assert b"x" in led.forbidden(guide)
    assert b"{" not in led.forbidden(guide)
